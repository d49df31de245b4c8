package bus_test

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/annona-gateway/annona/shared/bus"
	"github.com/annona-gateway/annona/shared/bus/bustest"
)

// eventually waits until done is true, at most 30 s.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	const tick, most = 5 * time.Millisecond, 30 * time.Second
	deadline := time.After(most)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for !done() {
		select {
		case <-deadline:
			t.Fatalf("after %s still not: %s", most, what)
		case <-ticker.C:
		}
	}
}

func TestConnectFailsAtOnceOnWhatCanNeverWork(t *testing.T) {
	for name, cfg := range map[string]bus.Config{
		"no server":              {},
		"not a URL":              {URLs: []string{"nats://[::1"}},
		"missing credentials":    {URLs: []string{"nats://127.0.0.1:4222"}, Credentials: filepath.Join(t.TempDir(), "none")},
		"a URL with a password":  {URLs: []string{"nats://user:topsecret@[::1"}},
		"an impossible inbox":    {URLs: []string{"nats://127.0.0.1:4222"}, Inbox: "a.*"},
		"one good, one bad URL ": {URLs: []string{"nats://127.0.0.1:4222", "nats://%zz"}},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := bus.Connect(cfg)
			if err == nil {
				conn.Close()
				t.Fatalf("Connect(%+v) = nil, want an error", cfg)
			}
			if strings.Contains(err.Error(), "topsecret") {
				t.Errorf("the error tells the password: %v", err)
			}
		})
	}
}

func TestConnectKeepsTryingUntilTheServerIsThere(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal("not a TCP address")
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	conn, err := bus.Connect(bus.Config{URLs: []string{"nats://" + address.String()}, Name: "early", Inbox: "_INBOX.eu"})
	if err != nil {
		t.Fatalf("Connect without a server = %v, want a connection that keeps trying", err)
	}
	defer conn.Close()
	if bus.Status(conn) == nil {
		t.Error("Status = nil without a server")
	}
	if err := conn.Publish("x", nil); err == nil {
		t.Error("Publish without a server = nil, want an error at once: nothing is buffered")
	}
	server := bustest.Start(t, bustest.Options{Port: address.Port})
	eventually(t, "connected", conn.IsConnected)
	if err := bus.Status(conn); err != nil {
		t.Errorf("Status = %v once connected", err)
	}
	if inbox := conn.NewRespInbox(); !strings.HasPrefix(inbox, "_INBOX.eu.") {
		t.Errorf("inbox %s, want it under _INBOX.eu", inbox)
	}
	server.Stop()
	eventually(t, "disconnected", func() bool { return bus.Status(conn) != nil })
	if err := conn.Publish("x", nil); !errors.Is(err, nats.ErrReconnectBufExceeded) {
		t.Errorf("Publish while out = %v, want an error at once", err)
	}
	server.Restart(t)
	eventually(t, "connected again", conn.IsConnected)
}

func TestReconnectWaitsAreJitteredAndBounded(t *testing.T) {
	seen := map[time.Duration]bool{}
	for attempt := range 200 {
		wait := bus.ReconnectDelay(attempt)
		if wait <= 0 || wait > bus.ReconnectMost {
			t.Fatalf("wait before attempt %d = %s, want above 0 and at most %s", attempt, wait, bus.ReconnectMost)
		}
		seen[wait] = true
	}
	if len(seen) < 100 {
		t.Errorf("200 waits took %d values only; they must be spread", len(seen))
	}
}

func TestReplicasAreAsManyAsTheServersAllow(t *testing.T) {
	refuse := &jetstream.APIError{ErrorCode: 10074}
	other := errors.New("disk full")
	for name, row := range map[string]struct {
		want    int
		allowed int
		fail    error
		tried   []int
		err     error
	}{
		"three of three":             {allowed: 3, tried: []int{3}},
		"one server":                 {allowed: 1, tried: []int{3, 2, 1}},
		"as configured":              {want: 3, allowed: 1, tried: []int{3}, err: refuse},
		"another error is no reason": {allowed: 3, fail: other, tried: []int{3}, err: other},
	} {
		t.Run(name, func(t *testing.T) {
			var tried []int
			err := bus.Replicas(row.want, func(replicas int) error {
				tried = append(tried, replicas)
				if row.fail == nil && replicas > row.allowed {
					return refuse
				}
				return row.fail
			})
			if !errors.Is(err, row.err) || len(tried) != len(row.tried) || tried[len(tried)-1] != row.tried[len(tried)-1] {
				t.Errorf("Replicas(%d) tried %v and = %v, want %v and %v", row.want, tried, err, row.tried, row.err)
			}
		})
	}
}
