"""PostgreSQL and Airflow on this machine, embedded: started, watched, asked, stopped."""
