"""A small HTTP client for the entrypoint, with the standard library alone."""

import http.client
import json
import threading

from cluster import SLOWNESS

TIMEOUT = 120 * SLOWNESS


def connect(address):
    host, port = address.rsplit(":", 1)
    return http.client.HTTPConnection(host, int(port), timeout=TIMEOUT)


def post(address, path, body):
    """Returns (status, headers, parsed JSON). A str or bytes body is sent as it is."""
    connection = connect(address)
    data = body if isinstance(body, (str, bytes)) else json.dumps(body)
    connection.request("POST", path, data, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), json.loads(text)


def get_status(address, path):
    connection = connect(address)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


def model_of(address):
    connection = connect(address)
    connection.request("GET", "/v1/models")
    models = json.load(connection.getresponse())
    connection.close()
    return models["data"][0]["id"]


def events(address, path, body):
    """Yields the parsed events of a streamed answer; checks that it ends with [DONE]."""
    connection = connect(address)
    connection.request("POST", path, json.dumps(dict(body, stream=True)), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise AssertionError(f"HTTP {answer.status}: {answer.read()[:500]}")
    is_done = False
    for line in answer:
        line = line.rstrip(b"\r\n")
        if not line.startswith(b"data:"):
            continue
        data = line[len(b"data:"):].strip()
        if data == b"[DONE]":
            is_done = True
        else:
            event = json.loads(data)
            if "error" in event:
                raise AssertionError(f"error in the stream: {event['error']}")
            yield event
    connection.close()
    if not is_done:
        raise AssertionError("the stream ended without [DONE]")


class Stream(threading.Thread):
    """One raw continuation, read in a thread of its own."""

    def __init__(self, address, body):
        super().__init__(daemon=True)
        self.address = address
        self.body = dict(body, echo_ids=True, stream_options={"include_usage": True})
        self.text = ""
        self.ids = []
        self.finish_reason = None
        self.usage = None
        self.error = None

    def run(self):
        try:
            for event in events(self.address, "/v1/completions", self.body):
                self.usage = event.get("usage") or self.usage
                for choice in event["choices"]:
                    self.text += choice.get("text") or ""
                    self.ids += choice.get("token_ids") or []
                    self.finish_reason = choice.get("finish_reason") or self.finish_reason
        except Exception as error:  # told by the thread that joins
            self.error = error


def run_streams(address, bodies):
    """Runs all at once and returns them finished; the first error is raised."""
    streams = [Stream(address, body) for body in bodies]
    for stream in streams:
        stream.start()
    return finish(streams)


def finish(streams):
    for stream in streams:
        stream.join(TIMEOUT)
        if stream.is_alive():
            raise AssertionError(f"a stream hangs after {len(stream.ids)} tokens")
    for stream in streams:
        if stream.error:
            raise stream.error
    return streams
