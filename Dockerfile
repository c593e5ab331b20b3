# Airflow with everything that a capture run needs: the lock's packages, Java, Delta's jars, this checkout.
FROM python:3.11-slim-bookworm

RUN apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 50000 airflow

WORKDIR /opt/tidemark
COPY requirements.txt .
RUN pip install --no-cache-dir --require-hashes -r requirements.txt

COPY . .
ENV PYTHONPATH=/opt/tidemark/include \
    PYSPARK_PYTHON=/usr/local/bin/python \
    TIDEMARK_SPARK_JARS=/opt/tidemark/.tidemark/jars \
    AIRFLOW_HOME=/opt/tidemark/.tidemark/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/tidemark/dags \
    AIRFLOW__CORE__PLUGINS_FOLDER=/opt/tidemark/plugins \
    AIRFLOW__CORE__LOAD_EXAMPLES=False
RUN python -m sandbox.jars \
 && mkdir -p .tidemark/lake .tidemark/airflow/logs \
 && chown -R airflow .tidemark

USER airflow
ENTRYPOINT ["tini", "--", "airflow"]
