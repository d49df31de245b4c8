// Package wan simulates the long way between a region and the allocator: a TCP proxy that adds the same delay in each direction
// without limiting throughput, and that can cut or hold the line. The demo puts one between each agent and NATS; the end-to-end
// tests use it as a tool that breaks things.
package wan

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// chunkSize and maxChunks bound what one direction of a connection has under way: 16 MiB, which at 100 ms one way still
	// carries 160 MiB/s. A full line makes the sender wait, as TCP does.
	chunkSize = 4 << 10
	maxChunks = 4 << 10
	// maxConnections bounds the connections of a link; more are refused.
	maxConnections = 1024
	// dialTimeout bounds the wait for the target.
	dialTimeout = 5 * time.Second
	// acceptPause keeps a link that cannot take callers for now from doing nothing but try.
	acceptPause = 10 * time.Millisecond
)

// Link is one simulated line. All methods are safe for concurrent use.
type Link struct {
	target   string
	listener net.Listener
	delay    atomic.Int64 // one way, in nanoseconds
	running  sync.WaitGroup

	mu struct {
		sync.Mutex

		cut, closed bool
		gate        chan struct{} // closed while the line carries bytes
		held        bool
		lines       map[*line]struct{}
	}
}

// Listen starts a link from addr (such as 127.0.0.1:0) to target, with oneWay added in each direction.
func Listen(addr, target string, oneWay time.Duration) (*Link, error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("simulated WAN: %w", err)
	}
	l := &Link{target: target, listener: listener}
	l.SetDelay(oneWay)
	l.mu.gate = make(chan struct{})
	close(l.mu.gate)
	l.mu.lines = map[*line]struct{}{}
	l.running.Go(l.accept)
	return l, nil
}

// Addr returns the address that the link listens on.
func (l *Link) Addr() string { return l.listener.Addr().String() }

// SetDelay changes the delay of what is sent from now on. A negative one counts as none.
func (l *Link) SetDelay(oneWay time.Duration) { l.delay.Store(int64(max(oneWay, 0))) }

// Cut ends every connection, with what is under way, and refuses new ones until Restore: both ends notice at once.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.cut = true
	l.dropLocked()
}

// Hold keeps every connection, and carries nothing until Restore: neither end notices but by waiting. What was sent meanwhile
// arrives then, late and in order, as with a router that comes back.
func (l *Link) Hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.mu.held && !l.mu.closed {
		l.mu.held, l.mu.gate = true, make(chan struct{})
	}
}

// Restore ends Cut and Hold.
func (l *Link) Restore() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.cut = false
	if l.mu.held {
		l.mu.held = false
		close(l.mu.gate)
	}
}

// Close ends the link and waits until nothing of it runs.
func (l *Link) Close() error {
	l.mu.Lock()
	l.mu.closed = true
	l.dropLocked()
	l.mu.Unlock()
	err := l.listener.Close()
	l.running.Wait()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("simulated WAN: %w", err)
	}
	return nil
}

func (l *Link) dropLocked() {
	for line := range l.mu.lines {
		line.drop()
	}
	clear(l.mu.lines)
}

func (l *Link) accept() {
	for {
		near, err := l.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			<-time.After(acceptPause) // out of descriptors, say: some will be given back
			continue
		}
		tcp, ok := near.(*net.TCPConn)
		if !ok || !l.enter(tcp) {
			reset(near)
		}
	}
}

// enter puts a caller's connection on the link; false where the link takes none.
func (l *Link) enter(near *net.TCPConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.cut || l.mu.closed || len(l.mu.lines) >= maxConnections {
		return false
	}
	ctx, cancel := context.WithCancel(context.Background())
	line := &line{link: l, near: near, end: cancel}
	l.mu.lines[line] = struct{}{}
	l.running.Go(func() { line.run(ctx) })
	return true
}

func (l *Link) leave(line *line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.mu.lines, line)
}

// gate returns a channel that is closed while the link carries bytes.
func (l *Link) gate() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.gate
}

// reset ends a connection so that its other end sees a refusal and not an orderly goodbye.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // best effort: closed it is in any case
	}
	_ = conn.Close()
}
