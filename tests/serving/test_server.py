"""A server answers all that it is asked within its bounds, refuses the rest in one line, and outlives odd clients."""

import base64
import io
import json
import re
import socket
import struct
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato.data import Tokens
from sfumato.serving.service import ApiKey
from tests.serving.conftest import dark

httpx = pytest.importorskip("httpx", reason="sfumato[test] is not installed whole")
PNG = {"content-type": "image/png"}
ARRAY = {"content-type": "application/x-npy"}
HEAD = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/png\r\ncontent-length: %d\r\n"
CLIENT = httpx.Client(verify=False, timeout=60)  # without the seconds that certificates take


@pytest.fixture(scope="session", autouse=True)
def _closed_at_the_end():
    yield
    CLIENT.close()


def early_end() -> bytes:
    """A PNG whose compressed stream is whole, and holds one row of the eight."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" + 8 * b"\xff")) + chunk(b"IEND", b"")


def url(place) -> str:
    return f"http://{place[0]}:{place[1]}"


def until(holds, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def refused(response, status: int, words: str) -> None:
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    assert "\n" not in response.json()["error"]
    assert words in response.json()["error"]


def test_each_form_of_an_image_has_the_answer_of_predict(serving, loaded, png):
    image = png(10)
    (row,) = loaded.predict([image]).tolist()
    with serving(loaded) as (place, _), httpx.Client(verify=False, base_url=url(place)) as client:
        coded = base64.b64encode(image).decode()
        sent = [
            client.post("/predict", content=image, headers=PNG),
            client.post("/predict", files={"file": image}),
            client.post("/predict", json={"images": [coded]}),
            client.post("/predict", json={"images": [base64.encodebytes(image).decode()]}),  # in lines of 76 characters
            client.post("/predict", json={"images": [f" {coded[:9]}\r\n\t{coded[9:]}\n"]}),
        ]
        for response in sent:
            (found,) = response.json()["predictions"]
            assert found == {"label": "dark", "score": row[0], "scores": dict(zip(loaded.classes, row, strict=True))}
        several = client.post("/predict", files=[("a", png(0)), ("b", png(255))]).json()["predictions"]
        assert [one["label"] for one in several] == ["dark", "light"]
        assert client.get("/statement").json() == loaded.statement.to_dict()
        assert client.get("/healthz").json() == {"status": "alive"}
        assert client.get("/readyz").json() == {"status": "ready"}
        refused(client.post("/embed", content=image, headers=PNG), 400, "the model is a classifier; POST to /predict")


def npy(array, **allowed) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **allowed)
    return file.getvalue()


@pytest.mark.parametrize("shape", [(8, 8), (2, 9, 12, 3), (70, 8, 8, 1), (5, 8, 8)])
def test_an_array_has_the_answers_of_predict_as_json_and_as_an_array(serving, loaded, shape):
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    rows = loaded.predict(images)
    with serving(loaded) as (place, _), httpx.Client(verify=False, base_url=url(place)) as client:
        for content in (npy(images), npy(np.asfortranarray(images))):
            answer = client.post("/predict", content=content, headers=ARRAY)
            scores = [list(one["scores"].values()) for one in answer.json()["predictions"]]
            assert scores == rows.tolist()
        answer = client.post("/predict", content=npy(images), headers=ARRAY | {"accept": ARRAY["content-type"]})
        assert answer.headers["content-type"] == ARRAY["content-type"]
        np.testing.assert_array_equal(np.load(io.BytesIO(answer.content)), rows.numpy())
    with serving(replace(loaded, embedding=2, reading=replace(loaded.reading, classes=()))) as (place, _):
        answer = CLIENT.post(
            f"{url(place)}/embed", content=npy(images), headers=ARRAY | {"accept": "application/x-npy"}
        )
        assert np.load(io.BytesIO(answer.content)).shape == (len(rows), 2)


def header_of(shape: str, dtype: str = "|u1") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not an array of images"),
        (npy(np.array([{}]), allow_pickle=True), "not an array of images"),
        (header_of("(1000000000000,)") + b"x", "not an array of images"),
        (header_of("(-1, 8, 8, -1)") + bytes(64), "not an array of images"),
        (header_of("(" * 200) + bytes(64), "not an array of images"),
        (header_of("(2, 8, 8, 1)") + bytes(127), "not an array of images"),
        (header_of("(1000000000, 0, 8, 1)"), "there are no images"),
        (header_of("(1, 8, 8, 7)") + bytes(448), "array of shape (8, 8, 7)"),
        (npy(np.zeros((1, 8, 8, 1), np.int64)), "array of int64"),
    ],
)
def test_a_bad_array_is_refused_and_none_is_made_by_its_header(shared, content, words):
    refused(shared.post("/predict", content=content, headers=ARRAY), 400, words)


def test_embeddings_labels_and_texts(serving, loaded, png):
    with serving(replace(loaded, embedding=2, reading=replace(loaded.reading, classes=()))) as (place, _):
        (found,) = CLIENT.post(f"{url(place)}/embed", content=png(40), headers=PNG).json()["embeddings"]
        assert torch.tensor(found).norm().item() == pytest.approx(1)
        refused(CLIENT.post(f"{url(place)}/predict", content=png(40), headers=PNG), 400, "gives embeddings")
    with serving(replace(loaded, reading=replace(loaded.reading, loss="multilabel"))) as (place, _):
        (found,) = CLIENT.post(f"{url(place)}/predict", content=png(255), headers=PNG).json()["predictions"]
        assert found["labels"] == ["light"]
    for tokenizer, texts in (("hashing", ["a cat"]), ("numbers", [[3, 1]])):
        read = Tokens(tokenizer=tokenizer, vocabulary=10, length=4)
        with (
            serving(replace(loaded, transform=read)) as (place, _),
            httpx.Client(verify=False, base_url=url(place)) as client,
        ):
            assert len(client.post("/predict", json={"texts": texts}).json()["predictions"]) == 1
            refused(client.post("/predict", content=png(1), headers=PNG), 415, "send JSON")
            refused(client.post("/predict", json={"texts": [None]}), 400, "texts[0]")
            assert "textarea" in client.get("/").text


@pytest.mark.parametrize(
    ("content", "kind", "status", "words"),
    [
        (b"", "image/png", 400, "not a readable image"),
        (b"x", "text/html", 415, "text/html"),
        (b"{", "application/json", 400, "not JSON"),
        (b"[" * 100_000, "application/json", 400, "not JSON"),
        (b'{"images": [1]}', "application/json", 400, "images[0] is not a string"),
        (b'{"images": ["/etc/hosts"]}', "application/json", 400, "base64"),
        (b'{"images": [], "images": []}', "application/json", 400, "not JSON"),
        (b'{"images": []}', "application/json", 400, "no images"),
        (b"x", "multipart/form-data", 400, "the form cannot be read"),
        (b"--b--\r\n", "multipart/form-data; boundary=b", 400, "no images"),
        (b"--b\r\nA: secret", "multipart/form-data; boundary=b", 400, "no images"),
        (early_end(), "image/png", 400, "broken or truncated"),
    ],
)
def test_bad_content_is_refused_in_one_line(shared, content, kind, status, words, capfd):
    refused(shared.post("/predict", content=content, headers={"content-type": kind}), status, words)
    assert "".join(capfd.readouterr()) == ""


@pytest.fixture(scope="module")
def shared(serving):
    """A client of one server for many bad requests."""
    with serving(dark()) as (place, _), httpx.Client(verify=False, base_url=url(place)) as client:
        yield client


def test_one_bad_image_among_good_ones_of_others_is_its_own_affair(serving, loaded, png):
    with serving(loaded) as (place, _), ThreadPoolExecutor(6) as pool:
        contents = [png(1), b"bad", png(200), png(2), b"bad", png(3)]
        statuses = pool.map(lambda one: CLIENT.post(f"{url(place)}/predict", content=one, headers=PNG), contents)
        assert [one.status_code for one in statuses] == [200, 400, 200, 200, 400, 200]
        refused(
            CLIENT.post(f"{url(place)}/predict", files=[("a", png(1)), ("b", b"x")]), 400, "record 1 of the request"
        )


def test_two_hundred_requests_at_once_are_all_answered(serving, loaded, png):
    images = [png(level) for level in range(28, 228)]
    expected = [loaded.classes[best] for best in loaded.predict(images).argmax(1).tolist()]
    with serving(loaded) as (place, service), ExitStack() as stack:
        lines = [stack.enter_context(socket.create_connection(place)) for _ in images]
        for line, image in zip(lines, images, strict=True):
            line.sendall(HEAD % len(image) + b"connection: close\r\n\r\n" + image)
        answers = [b"".join(iter(lambda line=line: line.recv(4096), b"")) for line in lines]
        found = [json.loads(one.partition(b"\r\n\r\n")[2])["predictions"][0]["label"] for one in answers]
        assert found == expected
        assert service.counts.open == service.counts.held == 0
        text = CLIENT.get(f"{url(place)}/metrics").text
        assert 'sfumato_requests_total{path="/predict",status="200"} 200' in text
        assert "sfumato_records_total 200" in text


def test_many_records_pass_through_the_model_in_parts(serving, loaded, png):
    loaded.module.sizes = []
    with serving(loaded) as (place, _):
        answer = CLIENT.post(f"{url(place)}/predict", files=[("a", png(1))] * 70)
    assert len(answer.json()["predictions"]) == 70
    assert loaded.module.sizes == [64, 6]


def test_a_full_queue_is_told_as_503(serving, loaded, png):
    loaded.module.seconds = 0.3
    with serving(loaded, queue=2) as (place, service), ThreadPoolExecutor(2) as pool:
        ask = lambda _: CLIENT.post(f"{url(place)}/predict", content=png(1), headers=PNG)  # noqa: E731
        answers = [pool.submit(ask, None) for _ in range(2)]
        until(lambda: service.counts.open == 2)
        refused(CLIENT.get(f"{url(place)}/readyz"), 503, "full")
        over = ask(None)
        refused(over, 503, "2 requests are waiting; send it again later")
        assert over.headers["retry-after"] == "1"
        assert [one.result().status_code for one in answers] == [200, 200]


def test_a_model_that_hangs_is_told_to_probes_and_keeps_no_server_from_ending(serving, loaded, png):
    loaded.module.seconds = 20
    with ThreadPoolExecutor(1) as pool:
        with serving(loaded, seconds=1) as (place, _):
            answer = pool.submit(CLIENT.post, f"{url(place)}/predict", content=png(1), headers=PNG)
            refused(answer.result(), 503, "no answer within 1 s")
            time.sleep(0.1)
            for probe in ("healthz", "readyz"):
                refused(CLIENT.get(f"{url(place)}/{probe}"), 503, "the model")
            began = time.monotonic()
            models = [one.daemon for one in threading.enumerate() if one.name == "sfumato-model"]
            assert models, "there is a thread of the model"
            assert all(models), "the process can end"
        assert time.monotonic() - began < 15


def test_a_request_that_nobody_waits_for_costs_no_more_time(serving, loaded, png):
    loaded.module.seconds, loaded.module.sizes = 0.5, []
    with serving(loaded, seconds=1) as (place, _):
        refused(CLIENT.post(f"{url(place)}/predict", files=[("a", png(1))] * 700), 503, "no answer within")
        loaded.module.seconds = 0
        assert CLIENT.post(f"{url(place)}/predict", content=png(1), headers=PNG).status_code == 200
        assert len(loaded.module.sizes) < 9


def test_an_answer_that_is_not_read_is_cut_off(serving, loaded):
    with serving(loaded, seconds=1) as (place, _), socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(place)
        line.settimeout(10)
        line.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n" * 500)  # more than any buffer of the kernel takes
        time.sleep(2)
        received = 0
        with suppress(ConnectionError):
            while piece := line.recv(1 << 16):
                received += len(piece)
        page = CLIENT.get(url(place))
        assert page.status_code == 200
        assert received < 400 * len(page.content)


def test_large_bodies_are_refused_and_never_held(serving, loaded):
    most, piece = 0, bytes(1 << 16)

    def pieces(count, service):
        nonlocal most
        for _ in range(count):
            most = max(most, service.counts.held)
            yield piece

    with serving(loaded, megabytes=1) as (place, service):
        for headers in ({}, {"content-length": str(1600 * len(piece))}):  # in chunks, and 100 MB as declared
            response = CLIENT.post(f"{url(place)}/predict", content=pieces(1600, service), headers=PNG | headers)
            refused(response, 413, "larger than 1 MB")
        assert most <= 1_000_000
        assert service.counts.held == 0


def test_bodies_together_have_a_bound(serving, loaded):
    with serving(loaded, megabytes=0.01, seconds=5) as (place, service):
        with ExitStack() as stack:
            for _ in range(20):
                line = stack.enter_context(socket.create_connection(place))
                line.sendall(HEAD % 10_000 + b"\r\n" + bytes(9000))
            until(lambda: service.counts.held > 150_000)
            time.sleep(0.2)  # the last ones are refused
            assert service.counts.held <= 160_000
        until(lambda: service.counts.held == 0)


def test_slow_clients_are_cut_off_and_others_are_served_meanwhile(serving, loaded, png):
    with serving(loaded, seconds=2) as (place, _), ExitStack() as stack:
        slow, body = (stack.enter_context(socket.create_connection(place, timeout=30)) for _ in range(2))
        slow.sendall(HEAD % 100)  # and never the end of the head
        body.sendall(HEAD % 100 + b"\r\n" + b"x")
        assert CLIENT.post(f"{url(place)}/predict", content=png(1), headers=PNG).status_code == 200
        assert slow.recv(100) == b""
        time.sleep(2.2)
        body.sendall(b"x" * 99)  # too late
        answer = b"".join(iter(lambda: body.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"the body took more than 2 s" in answer


def test_aborted_connections_leave_nothing_behind(serving, loaded, png):
    whole = HEAD % len(png(1)) + b"\r\n" + png(1)
    with serving(loaded) as (place, service):
        for part in (b"GET", HEAD % 1000, HEAD % 1000 + b"\r\n" + b"x" * 500, whole):
            with socket.create_connection(place) as line:
                line.sendall(part)
        until(lambda: sum(service.counts.requests.values()) >= 2)
        assert (service.counts.held, service.counts.open) == (0, 0)
        assert CLIENT.post(f"{url(place)}/predict", content=png(1), headers=PNG).status_code == 200


def test_a_failure_of_the_model_is_said_without_what_was_sent(serving, loaded, png, capfd):
    loaded.module.fails = True
    with serving(loaded) as (place, _):
        refused(CLIENT.post(f"{url(place)}/predict", content=png(1), headers=PNG), 500, "the server failed")
        loaded.module.fails = False
        assert CLIENT.post(f"{url(place)}/predict", content=png(1), headers=PNG).status_code == 200
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: RuntimeError at ")
    assert "secret" not in printed.err


def test_what_was_begun_is_answered_at_the_end(serving, loaded, png):
    loaded.module.seconds = 0.5
    with ThreadPoolExecutor(1) as pool:
        with serving(loaded) as (place, service):
            answer = pool.submit(CLIENT.post, f"{url(place)}/predict", content=png(1), headers=PNG)
            until(lambda: service.counts.open == 1)
        assert answer.result().status_code == 200
    with pytest.raises(httpx.ConnectError):
        CLIENT.get(f"{url(place)}/healthz")


def test_a_key_is_asked_for(serving, loaded, png, tmp_path):
    path = tmp_path / "key"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o600)
    with serving(loaded, key=ApiKey(path)) as (place, _), httpx.Client(verify=False, base_url=url(place)) as client:
        for given in ({}, {"authorization": "Bearer 0123456789abcdeF"}, {"authorization": "Basic 0123456789abcdef"}):
            refused(client.post("/predict", content=png(1), headers=PNG | given), 401, "key is missing or wrong")
            refused(client.get("/metrics", headers=given), 401, "Bearer KEY")
        own = {"authorization": "Bearer 0123456789abcdef"}
        assert client.post("/predict", content=png(1), headers=PNG | own).status_code == 200
        assert client.get("/metrics", headers=own).status_code == 200
        assert client.get("/healthz").status_code == 200
        assert 'type="password"' in client.get("/").text


def test_the_page_has_the_statement_and_runs_its_own_script_alone(serving, loaded):
    with serving(loaded) as (place, _):
        response = CLIENT.get(url(place))
    assert loaded.statement.to_dict()["sentence"] in response.text
    assert "one &lt;example&gt;." in response.text
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert "http" not in response.text.replace("http-equiv", "")
    assert "server" not in response.headers
    # A display of its own would outweigh the attribute `hidden` of the image that nobody has sent yet.
    assert re.search(r"\.drop img\[hidden\] \{ display: none; \}", response.text)


@pytest.mark.parametrize("path", ["/", "/predict", "/metrics", "/nothing/"])
def test_requests_to_another_host_are_refused_on_a_loopback_address(serving, loaded, png, path):
    with serving(loaded) as (place, _):
        method, content = ("POST", png(40)) if path == "/predict" else ("GET", None)

        def status(host):
            found = CLIENT.request(method, url(place) + path, content=content, headers={**PNG, "host": host})
            assert "rebound" not in f"{found.headers} {found.text}"
            return found.status_code

        own = {404} if path == "/nothing/" else {200}
        assert {status(host) for host in ("localhost:9000", "LOCALHOST", "127.0.0.1:1", "[::1]:1", "[::1]")} == own
        others = ("rebound.example", "rebound.example:8000", "localhost.rebound.example", "127.0.0.1.rebound.example:1")
        assert {status(host) for host in (*others, "192.168.0.1", "[::1].rebound", "")} <= {421, 404, 400}


def test_no_path_is_redirected(shared):
    for path in ("/predict/", "/statement/"):
        refused(shared.get(path, headers={"host": "elsewhere.example"}), 404, "is not supported for this path")
