# What every service of docker-compose.yaml but PostgreSQL runs: the lock's packages, Java, Delta's jars, this checkout.
# The digest of 3.11.16 for all platforms; `docker buildx imagetools inspect python:3.11-slim-bookworm` says a newer one.
FROM python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b

RUN apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 50000 airflow

WORKDIR /opt/tidemark
# Spark comes as source: what builds it is from the lock too, like pip itself.
COPY requirements.txt .
COPY include/sandbox include/sandbox
RUN PYTHONPATH=include python -m sandbox.setup.lock requirements.txt pip setuptools > /tmp/bootstrap.txt \
 && pip install --no-cache-dir --no-deps --require-hashes --only-binary :all: -r /tmp/bootstrap.txt \
 && pip install --no-cache-dir --no-deps --require-hashes --no-build-isolation -r requirements.txt \
 && pip install --no-cache-dir --no-deps --require-hashes --only-binary :all: -r include/sandbox/setup/celery.txt

COPY . .
ENV PYTHONPATH=/opt/tidemark/include \
    PYSPARK_PYTHON=/usr/local/bin/python \
    TIDEMARK_SPARK_JARS=/opt/tidemark/.tidemark/jars \
    AIRFLOW_HOME=/opt/tidemark/.tidemark/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/tidemark/dags \
    AIRFLOW__CORE__PLUGINS_FOLDER=/opt/tidemark/plugins \
    AIRFLOW__CORE__LOAD_EXAMPLES=False
RUN printf '#!/bin/sh\nexec python -m tidemark "$@"\n' > /usr/local/bin/tidemark && chmod +x /usr/local/bin/tidemark \
 && python -m sandbox.setup.jars \
 && mkdir -p .tidemark/airflow/logs .tidemark/s3 .tidemark/spark \
 && chown -R airflow .tidemark

USER airflow
ENTRYPOINT ["tini", "--", "airflow"]
