package cluster

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Switch is an address in front of servers of which one is behind it at a time, as Sentinel's clients or a virtual address see a
// failover.
type Switch struct {
	listener net.Listener

	mu     sync.Mutex
	target string
	open   map[net.Conn]struct{}
}

// NewSwitch starts one that leads to target; the test's end closes it.
func NewSwitch(t testing.TB, target string) *Switch {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Switch{listener: listener, target: target, open: map[net.Conn]struct{}{}}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { s.carry(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		s.To("")
		running.Wait()
	})
	return s
}

// Addr is where it listens.
func (s *Switch) Addr() string { return s.listener.Addr().String() }

// To leads to target from now on, and ends every connection to the one before.
func (s *Switch) To(target string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.target = target
	for conn := range s.open {
		_ = conn.Close()
	}
}

func (s *Switch) carry(conn net.Conn) {
	s.mu.Lock()
	back, err := net.DialTimeout("tcp", s.target, time.Second)
	if err != nil {
		s.mu.Unlock()
		_ = conn.Close()
		return
	}
	s.open[conn], s.open[back] = struct{}{}, struct{}{}
	s.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { pipe(conn, back) })
	both.Go(func() { pipe(back, conn) })
	both.Wait()
	s.mu.Lock()
	delete(s.open, conn)
	delete(s.open, back)
	s.mu.Unlock()
}

// pipe carries bytes one way until either end closes, and closes both.
func pipe(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	_ = to.Close()
	_ = from.Close()
}
