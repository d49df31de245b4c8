package upstream_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/annona-gateway/annona/deployments/upstream"
)

func TestTheUpstreamAnswersWhatItWasAsked(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(upstream.Handler())
	t.Cleanup(server.Close)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/a%2Fb/?q=1&r=<2>", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	request.Host = "api.example"
	request.Header = http.Header{"X-Zulu": {"z"}, "X-Alpha": {"1", "2"}, "User-Agent": {"test"}, "Accept-Encoding": {"identity"}}
	response, err := server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"method":"POST","target":"/a%2Fb/?q=1&r=<2>","headers":{"Accept-Encoding":["identity"],"Content-Length":["4"],` +
		`"Host":["api.example"],"User-Agent":["test"],"X-Alpha":["1","2"],"X-Zulu":["z"]}}`
	if response.StatusCode != http.StatusOK || strings.TrimSpace(string(got)) != want {
		t.Errorf("%d %s, want 200 %s", response.StatusCode, got, want)
	}
	if kind := response.Header.Get("Content-Type"); kind != "application/json" {
		t.Errorf("Content-Type %q", kind)
	}
}
