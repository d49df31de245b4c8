package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
)

// raw sends text as it is and reads one answer.
func raw(t *testing.T, addr, text string) answered {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(text, " ")
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answered{res, body}
}

// gatewayTo is a gateway before an upstream of one function, and how often it charged.
func gatewayTo(t *testing.T, handler http.HandlerFunc, change func(*Config)) (*running, *atomic.Int64) {
	t.Helper()
	up := httptest.NewServer(handler)
	t.Cleanup(up.Close)
	cfg := testConfig(t, perUser, up.URL)
	if change != nil {
		change(&cfg)
	}
	var charged atomic.Int64
	return run(t, cfg, &fakeStore{take: func(r bucket.Request) (bucket.Verdict, error) {
		charged.Add(1)
		return admitAll(r)
	}}), &charged
}

// Case 17: events pass as they come, and the limits are in the header of the stream.
func TestCase17_EventsPassAsTheyCome(t *testing.T) {
	next := make(chan struct{})
	g, _ := gatewayTo(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			<-next
		}
	}, nil)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+g.Addr().String()+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", "key-a")
	start := time.Now()
	res, err := client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.Header.Get("Ratelimit") == "" {
		t.Error("the stream has no limits in its header")
	}
	lines := bufio.NewScanner(res.Body)
	for i := range 3 {
		if !lines.Scan() || lines.Text() != fmt.Sprintf("data: %d", i) {
			t.Fatalf("event %d is %q, %v", i, lines.Text(), lines.Err())
		}
		if i == 0 && time.Since(start) > 100*time.Millisecond {
			t.Errorf("the first event took %v", time.Since(start))
		}
		lines.Scan()
		next <- struct{}{} // the upstream goes on only once the client has its event
	}
}

// Case 17: an upgrade passes, both ways, and is charged once.
func TestCase17_UpgradeIsChargedOnce(t *testing.T) {
	g, charged := gatewayTo(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = rw.Flush()
		line, _ := rw.ReadString('\n')
		_, _ = rw.WriteString("you said " + line)
		_ = rw.Flush()
	}, nil)
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", g.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nX-API-Key: key-a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, nil) //nolint:bodyclose // an upgrade has none
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols || res.Header.Get("Ratelimit") == "" {
		t.Fatalf("upgrade = %+v, %v, want 101 with limits", res, err)
	}
	_, _ = io.WriteString(conn, "hello\n")
	if line, err := r.ReadString('\n'); err != nil || line != "you said hello\n" {
		t.Errorf("over the upgraded connection: %q, %v", line, err)
	}
	if charged.Load() != 1 {
		t.Errorf("charged %d times, want once", charged.Load())
	}
}

// An interim answer is not the answer.
func TestInterimAnswersPass(t *testing.T) {
	g, _ := gatewayTo(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusCreated)
	}, nil)
	hints := 0
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error { hints++; return nil }})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+g.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", "key-a")
	if a := g.do(t, req); a.StatusCode != http.StatusCreated || hints != 1 || a.Header.Get("Ratelimit") == "" {
		t.Errorf("status %d after %d hints, headers %v", a.StatusCode, hints, a.Header)
	}
}

func TestUpstreamOutIs502WithLimits(t *testing.T) {
	g, charged := gatewayTo(t, nil, func(c *Config) { c.Routes[0].Upstreams = []string{"http://127.0.0.1:1"} })
	a := g.get(t, "/", "X-API-Key", "key-a")
	if a.problem(t); a.StatusCode != http.StatusBadGateway || a.Header.Get("Ratelimit") == "" || charged.Load() != 1 {
		t.Errorf("status %d, headers %v, charged %d", a.StatusCode, a.Header, charged.Load())
	}
	if strings.Contains(string(a.body), "127.0.0.1") {
		t.Errorf("the answer shows the upstream: %s", a.body)
	}
}

func TestSlowUpstreamIs504(t *testing.T) {
	done := make(chan struct{})
	g, _ := gatewayTo(t, func(http.ResponseWriter, *http.Request) { <-done }, func(c *Config) { c.Routes[0].Timeout = 50 * time.Millisecond })
	a := g.get(t, "/", "X-API-Key", "key-a")
	close(done)
	if a.problem(t); a.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("status %d, want 504", a.StatusCode)
	}
}

// A body without a length is cut at the bound.
func TestEndlessBodyIs413(t *testing.T) {
	g, _ := gatewayTo(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }, func(c *Config) { c.Routes[0].MaxBody = 8 })
	a := raw(t, g.Addr().String(), "POST / HTTP/1.1\r\nHost: x\r\nX-API-Key: key-a\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n")
	if a.problem(t); a.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d, want 413", a.StatusCode)
	}
}

// HTTP/2 without TLS, as gRPC clients inside a network speak it.
func TestH2CIsAccepted(t *testing.T) {
	g, _ := gatewayTo(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, nil)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+g.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", "key-a")
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	defer res.Body.Close()
	if res.ProtoMajor != 2 || res.StatusCode != http.StatusNoContent || res.Header.Get("Ratelimit") == "" {
		t.Errorf("%s %d %v", res.Proto, res.StatusCode, res.Header)
	}
}

func TestHeadHasNoBody(t *testing.T) {
	g, _ := gatewayTo(t, func(http.ResponseWriter, *http.Request) {}, nil)
	a := raw(t, g.Addr().String(), "HEAD /../x HTTP/1.1\r\nHost: x\r\nX-API-Key: key-a\r\nConnection: close\r\n\r\n")
	same := raw(t, g.Addr().String(), "GET /../x HTTP/1.1\r\nHost: x\r\nX-API-Key: key-a\r\nConnection: close\r\n\r\n")
	if a.StatusCode != http.StatusBadRequest || len(a.body) != 0 || a.ContentLength != int64(len(same.body)) {
		t.Errorf("status %d with %q and length %d, want 400 with nothing and the length of GET's %d", a.StatusCode, a.body, a.ContentLength, len(same.body))
	}
	for name := range same.Header {
		if a.Header.Get(name) == "" {
			t.Errorf("GET's answer has %s, HEAD's has not", name)
		}
	}
}
