# docker build -t bertfeat . && docker run --rm bertfeat extracts the features of the example text.
FROM python:3.12-slim
WORKDIR /bertfeat
COPY . .
RUN pip install --no-cache-dir '.[minilm]' -c constraints.txt
ENTRYPOINT ["bertfeat"]
CMD ["extract", "examples/data/peps.txt", "-o", "demo-features"]
