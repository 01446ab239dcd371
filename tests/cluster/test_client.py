"""What a failing test prints about its cluster."""

from pathlib import Path

from .client import Client


def test_answers_that_broke_off_behind_the_api_server_are_shown(tmp_path: Path) -> None:
    client = Client(tmp_path / "kubeconfig", programs=tmp_path, scratch=tmp_path / "scratch")
    assert client.broken_answers() == ""  # the cluster of others
    (tmp_path / "logs").mkdir()
    said = ["I 1 serving", "E 2 httputil: ReverseProxy read error during body copy: unexpected EOF"]
    said += ['E 3 "Timeout or abort while handling" method="POST" URI="/api/v1/namespaces/x/services/y/proxy/v1"']
    (tmp_path / "logs" / "kube-apiserver.log").write_text("\n".join(said))
    assert client.broken_answers() == said[1]
