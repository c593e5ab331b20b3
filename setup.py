"""What the wheel is made of: the library, Airflow's side of it, and the Spark applications as the library's data.

The folders of the repository stay as they are; this says which of them goes where. The rest is in pyproject.toml.
"""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages("include", include=["tidemark", "tidemark.*"]),
        *find_packages("plugins", include=["tidemark_airflow", "tidemark_airflow.*"]),
        "tidemark.spark_apps",
    ],
    package_dir={
        "tidemark": "include/tidemark",
        "tidemark_airflow": "plugins/tidemark_airflow",
        "tidemark.spark_apps": "spark_apps",
    },
    package_data={"": ["*.sql", "*.properties", "s3a_jars.txt", "log_store/*", "static/*"]},
)
