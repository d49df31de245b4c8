package gateway

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
)

// hasty is a gateway's patience in tests: short, and still long beside what a healthy client needs.
func hasty(c *Config) {
	c.patience = &patience{header: 200 * time.Millisecond, write: 200 * time.Millisecond, linger: 200 * time.Millisecond}
}

func dial(t *testing.T, g *running) *net.TCPConn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", g.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		t.Fatalf("dialled a %T", conn)
	}
	return tcp
}

// A header that trickles in is not waited for, and costs the upstream nothing.
func TestSlowHeaderIsClosed(t *testing.T) {
	g, charged := gatewayTo(t, func(http.ResponseWriter, *http.Request) { t.Error("reached the upstream") }, hasty)
	conn := dial(t, g)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	closed := make(chan struct{})
	go func() { defer close(closed); _, _ = io.Copy(io.Discard, conn) }()
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nX-API-Key: key-a\r\nX-Slow: ")
	for {
		select {
		case <-closed:
			if charged.Load() != 0 {
				t.Error("it was charged")
			}
			return
		case <-tick.C:
			_, _ = io.WriteString(conn, "a")
		}
	}
}

// A denied client hears of it at once, also if it never sends the body that it announced, and does not keep the connection.
func TestDenialDoesNotWaitForTheBody(t *testing.T) {
	cfg := testConfig(t, perUser, upstream(t).URL)
	hasty(&cfg)
	g := run(t, cfg, &fakeStore{take: func(bucket.Request) (bucket.Verdict, error) {
		return bucket.Verdict{Outcome: bucket.Denied, States: []bucket.State{{Lacking: true, PoolAge: -1, RetryIn: 1}}}, nil
	}})
	conn := dial(t, g)
	_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nX-API-Key: key-a\r\nContent-Length: 1000\r\n\r\nabc")
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != http.StatusTooManyRequests {
		t.Fatalf("answer %v, %v, want 429", res, err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	if _, err := r.ReadByte(); err == nil {
		t.Error("the connection goes on after a body that never came")
	}
}

// endless answers without an end, and tells when the gateway has let go.
func endless(gone chan<- struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		defer close(gone)
		piece := bytes.Repeat([]byte("x"), 64<<10)
		for {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	}
}

func TestSlowReaderIsCutOff(t *testing.T) {
	gone := make(chan struct{})
	g, _ := gatewayTo(t, endless(gone), hasty)
	conn := dial(t, g)
	_ = conn.SetReadBuffer(4 << 10)
	_, _ = io.WriteString(conn, smuggled)
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Error("the gateway still waits for a client that does not read")
	}
}

// A client of HTTP/2 can close one stream's window and keep the connection alive.
func TestSlowReaderOfOneStreamIsCutOff(t *testing.T) {
	gone := make(chan struct{})
	g, _ := gatewayTo(t, endless(gone), hasty)
	client := h2c(t, &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 1 << 20})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+g.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", "key-a")
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Error("the gateway still waits for a stream that nobody reads")
	}
}

// A stream that has nothing to say for longer than any patience goes on, in both protocols.
func TestIdleStreamsAreNotSlow(t *testing.T) {
	for name, client := range map[string]*http.Client{"HTTP/1.1": client(), "HTTP/2": h2c(t, nil)} {
		t.Run(name, func(t *testing.T) {
			g, _ := gatewayTo(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, "data: 1\n\n")
				_ = http.NewResponseController(w).Flush()
				select { // the pause is what is tested
				case <-time.After(600 * time.Millisecond):
				case <-r.Context().Done():
				}
				_, _ = io.WriteString(w, "data: 2\n\n")
			}, hasty)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+g.Addr().String(), nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Api-Key", "key-a")
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if body, err := io.ReadAll(res.Body); err != nil || string(body) != "data: 1\n\ndata: 2\n\n" {
				t.Errorf("%q, %v", body, err)
			}
		})
	}
}

// The connection of a small body that nobody read serves the next request.
func TestUnreadBodyKeepsTheConnection(t *testing.T) {
	g, charged := gatewayTo(t, func(http.ResponseWriter, *http.Request) {}, hasty)
	const post = "POST / HTTP/1.1\r\nHost: x\r\nX-API-Key: nobody\r\nContent-Length: 4\r\n\r\nbody"
	if got := exchangeRaw(t, g.Addr().String(), post+smuggled); len(got) != 2 || got[0] != 401 || got[1] != 200 || charged.Load() != 1 {
		t.Errorf("answers %v, charged %d, want 401, 200 and 1", got, charged.Load())
	}
}

// Section 11: no identity ever stands in the log, whatever way it came.
func TestAccessLogHasNoIdentities(t *testing.T) {
	g, _ := gatewayTo(t, func(http.ResponseWriter, *http.Request) {}, nil)
	g.get(t, "/users/alice/orders?token=sesame", "X-API-Key", "key-alice", "Authorization", "Bearer sesame", "Cookie", "sesame", "X-Request-Id", "r-1",
		"User-Agent", "sesame", "X-Forwarded-For", "198.51.100.7")
	eventually(t, "the request is in the log", func() bool { return strings.Contains(g.log.String(), `"request_id":"r-1"`) })
	log := g.log.String()
	for _, secret := range []string{"alice", "sesame", "key-", "198.51.100.7", `"127.0.0.1`} {
		for line := range strings.Lines(log) {
			if strings.Contains(line, `"msg":"request"`) && strings.Contains(line, secret) {
				t.Errorf("%q stands in %s", secret, line)
			}
		}
	}
}
