package gateway

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Load balancers find a gateway that is to end unready while it still serves, and have the delay to notice; each answer ends its
// connection.
func TestDrainServesWhileLoadBalancersNotice(t *testing.T) {
	cfg := testConfig(t, perUser, upstream(t).URL)
	cfg.Drain = DrainConfig{Delay: 3 * time.Second, Timeout: 20 * time.Second}
	g := run(t, cfg, &fakeStore{take: admitAll})
	ended := make(chan error, 1)
	began := time.Now()
	go func() { ended <- g.stop() }()
	eventually(t, "/readyz is 503", func() bool {
		code, body := g.ready(t)
		return code == http.StatusServiceUnavailable && strings.Contains(body, "draining")
	})
	if a := g.get(t, "/", "X-API-Key", "key-a"); a.StatusCode != http.StatusOK || !a.Close {
		t.Errorf("a new connection in the delay: %d, close %v; want 200 that ends it", a.StatusCode, a.Close)
	}
	if err := <-ended; err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
	if took := time.Since(began); took < cfg.Drain.Delay || took > 15*time.Second {
		t.Errorf("an idle gateway drained for %s, want the delay and little more", took)
	}
}

// upgraded is a connection over which line by line is echoed.
func upgraded(t *testing.T, g *running) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", g.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nX-API-Key: key-a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, nil) //nolint:bodyclose // an upgrade has none
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade = %+v, %v", res, err)
	}
	return conn, r
}

// echoLines upgrades, and otherwise answers with events that never end.
func echoLines(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "" {
		_, _ = io.WriteString(w, "data: 1\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	for rw.Flush() == nil {
		line, err := rw.ReadString('\n')
		if err != nil {
			return
		}
		_, _ = rw.WriteString(line)
	}
}

// An upgraded connection is a request in flight like any other: it goes on while the gateway drains, which waits for it.
func TestDrainWaitsForUpgradedConnections(t *testing.T) {
	g, _ := gatewayTo(t, echoLines, func(c *Config) { c.Drain.Timeout = 20 * time.Second })
	conn, r := upgraded(t, g)
	ended := make(chan error, 1)
	go func() { ended <- g.stop() }()
	eventually(t, "the listener is closed", func() bool {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", g.Addr().String())
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	_, _ = io.WriteString(conn, "still there?\n")
	if line, err := r.ReadString('\n'); err != nil || line != "still there?\n" {
		t.Errorf("while draining: %q, %v", line, err)
	}
	select {
	case err := <-ended:
		t.Fatalf("Run = %v before the connection ended", err)
	default:
	}
	_ = conn.Close()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the gateway waits on, though the connection has ended")
	}
}

// Streams and upgraded connections that go on are cut off at the end of the time.
func TestDrainIsBounded(t *testing.T) {
	g, _ := gatewayTo(t, echoLines, func(c *Config) { c.Drain.Timeout = 500 * time.Millisecond })
	_, socket := upgraded(t, g)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+g.Addr().String()+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	began := time.Now()
	if err := g.stop(); err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
	if took := time.Since(began); took < 500*time.Millisecond || took > 10*time.Second {
		t.Errorf("drained for %s, want half a second and little more", took)
	}
	if _, err := socket.ReadString('\n'); err == nil {
		t.Error("the upgraded connection goes on")
	}
	if body, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("the stream ended as if it were whole: %q", body)
	}
	if !strings.Contains(g.log.String(), `"requests":2`) {
		t.Errorf("the log does not tell that two were cut off:\n%s", g.log.String())
	}
}

func TestDrainConfigIsValidated(t *testing.T) {
	for d, good := range map[DrainConfig]bool{
		{3 * time.Second, 9 * time.Second}: true, {0, time.Second}: true, {0, 0}: false, {-1, time.Second}: false,
		{time.Second, time.Second}: false, {0, 2 * time.Hour}: false,
	} {
		if err := d.validate(); (err == nil) != good {
			t.Errorf("%+v: %v", d, err)
		}
	}
}
