package proxy_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/annona-gateway/annona/gateway/proxy"
	"github.com/annona-gateway/annona/shared/policy"
)

// deaf is an address where nobody listens.
func deaf(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

func post(t *testing.T, body io.Reader) *http.Request {
	t.Helper()
	return httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", body)
}

// A request that found nobody at one upstream goes to another, its body too: nothing of it had been sent.
func TestAnotherUpstreamIsTried(t *testing.T) {
	echo := func(r *http.Request) string { body, _ := io.ReadAll(r.Body); return r.Host + string(body) }
	up := server(t, echo)
	p := newProxy(t, proxy.Route{Name: "r", Upstreams: []string{deaf(t), deaf(t), up}})
	for range 6 {
		w, err := serve(t, p, post(t, strings.NewReader("hello")), "/", policy.Identity{})
		if want := strings.TrimPrefix(up, "http://") + "hello"; err != nil || w.Body.String() != want {
			t.Fatalf("answered %q, %v, want %q", w.Body, err, want)
		}
	}
}

func TestUpstreamIsLeftOutAndTold(t *testing.T) {
	var log bytes.Buffer
	gone := deaf(t)
	p, err := proxy.New([]proxy.Route{{Name: "r", Upstreams: []string{gone}}}, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := serve(t, p, post(t, nil), "/", policy.Identity{}); !errors.Is(err, proxy.ErrUpstream) {
			t.Fatalf("Serve = %v, want %v", err, proxy.ErrUpstream)
		}
	}
	if text := log.String(); strings.Count(text, "an upstream is left out") != 1 || !strings.Contains(text, strings.TrimPrefix(gone, "http://")) {
		t.Errorf("log: %s", text)
	}
}

// An upstream that does not answer in time is left out as well; the requests that found out are 504.
func TestSlowUpstreamIsLeftOut(t *testing.T) {
	hang := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(slow.Close)
	t.Cleanup(func() { close(hang) })
	good := server(t, func(*http.Request) string { return "good" })
	p := newProxy(t, proxy.Route{Name: "r", Upstreams: []string{slow.URL, good}, Timeout: 50 * time.Millisecond})
	timeouts := 0
	for range 12 {
		if _, err := serve(t, p, post(t, nil), "/", policy.Identity{}); errors.Is(err, proxy.ErrUpstreamTimeout) {
			timeouts++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if timeouts != 3 {
		t.Errorf("%d of 12 timed out, want 3 and then none", timeouts)
	}
}

// What a client breaks is the client's fault, and no upstream is left out for it.
func TestClientsFaults(t *testing.T) {
	up := server(t, func(r *http.Request) string { _, _ = io.Copy(io.Discard, r.Body); return "ok" })
	other := server(t, func(*http.Request) string { return "other" })
	p := newProxy(t, proxy.Route{Name: "r", Upstreams: []string{up, other}, MaxBody: 8, Timeout: time.Second})
	for name, row := range map[string]struct {
		body io.Reader
		want error
	}{
		"too large": {io.MultiReader(strings.NewReader("123456789")), proxy.ErrTooLarge},
		"broken":    {iotest.ErrReader(errors.New("malformed chunk")), proxy.ErrBody},
	} {
		for range 8 {
			r := post(t, row.body)
			r.ContentLength = -1
			if _, err := serve(t, p, r, "/", policy.Identity{}); err != nil && !errors.Is(err, row.want) {
				t.Errorf("%s: Serve = %v, want %v", name, err, row.want)
			}
		}
	}
	seen := map[string]bool{}
	for range 2 {
		w, err := serve(t, p, post(t, nil), "/", policy.Identity{})
		if err != nil {
			t.Fatal(err)
		}
		seen[w.Body.String()] = true
	}
	if len(seen) != 2 {
		t.Errorf("only %v still get requests", seen)
	}
}

// trickling is a proxy before an upstream that reads bodies, on a real socket, with little patience for clients.
func trickling(t *testing.T, up string, route proxy.Route) (addr string, errs <-chan error) {
	t.Helper()
	route.Name, route.Upstreams = "r", []string{up}
	p := newProxy(t, route)
	ended := make(chan error, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		target, err := p.Route("host", "/")
		if err != nil {
			t.Error(err)
			return
		}
		target.SetGrace(100 * time.Millisecond)
		_ = http.NewResponseController(w).EnableFullDuplex()
		if err = target.Serve(w, r, "/", policy.Identity{}); err != nil {
			w.WriteHeader(http.StatusTeapot)
		}
		ended <- err
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), ended
}

func TestSlowBodyIsNotWaitedFor(t *testing.T) {
	up := server(t, func(r *http.Request) string { _, _ = io.Copy(io.Discard, r.Body); return "ok" })
	addr, errs := trickling(t, up, proxy.Route{})
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(5 * time.Second)
	for {
		select {
		case err := <-errs:
			if !errors.Is(err, proxy.ErrSlowBody) {
				t.Errorf("Serve = %v, want %v", err, proxy.ErrSlowBody)
			}
			return
		case <-tick.C:
			_, _ = io.WriteString(conn, "a")
		case <-deadline:
			t.Fatal("still waiting for a body of a byte now and then")
		}
	}
}

// Once the upstream answers, both ways are streams, and may pause for longer than any body may take.
func TestAnsweredBodyMayPause(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		_, _ = io.WriteString(w, "go on ")
		_ = http.NewResponseController(w).Flush()
		_, _ = io.Copy(w, r.Body)
	}))
	t.Cleanup(up.Close)
	addr, errs := trickling(t, up.URL, proxy.Route{})
	reader, writer := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr, reader)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.WriteString(writer, "first ") }()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	res, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	<-time.After(300 * time.Millisecond) // the pause is what is tested
	_, _ = io.WriteString(writer, "last")
	_ = writer.Close()
	if body, err := io.ReadAll(res.Body); err != nil || string(body) != "go on first last" {
		t.Errorf("%q, %v", body, err)
	}
	if err := <-errs; err != nil {
		t.Errorf("Serve = %v", err)
	}
}

// An upstream that stops taking a body does not hold its request for ever.
func TestUpstreamThatTakesNoBodyIsATimeout(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // accepts by its backlog, and reads nothing
	p := newProxy(t, proxy.Route{Name: "r", Upstreams: []string{"http://" + l.Addr().String()}, Timeout: 100 * time.Millisecond, MaxBody: 1 << 40})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r := post(t, struct{ io.Reader }{endlessReader{}}).WithContext(ctx)
	r.ContentLength = -1
	if _, err := serve(t, p, r, "/", policy.Identity{}); !errors.Is(err, proxy.ErrUpstreamTimeout) {
		t.Errorf("Serve = %v, want %v", err, proxy.ErrUpstreamTimeout)
	}
}

type endlessReader struct{}

func (endlessReader) Read(p []byte) (int, error) { return len(p), nil }
