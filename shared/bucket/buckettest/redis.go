package buckettest

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Server is a redis-server process that a test started and owns.
type Server struct {
	// Addr is where it listens, on loopback; Restart keeps it.
	Addr string
	// Dir is its working directory: where it keeps its data if args turn persistence on.
	Dir string

	t      testing.TB
	args   []string
	config string // a sentinel's file, which stands in place of args
	proc   *exec.Cmd
	log    *strings.Builder
	plain  *redis.Client // see admin
}

// StartRedis starts a redis-server on a free port of loopback and waits until it answers; the test's end kills it. It keeps
// nothing on disk unless args (as on its command line: "--appendonly", "yes") say so. A machine without redis-server fails
// the test.
func StartRedis(t testing.TB, args ...string) *Server {
	t.Helper()
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Addr: fmt.Sprintf("127.0.0.1:%d", port), Dir: t.TempDir(), t: t, args: args}
	s.start()
	t.Cleanup(s.Kill)
	return s
}

// Kill ends the process at once, as a crash would.
func (s *Server) Kill() {
	if s.proc == nil {
		return
	}
	_ = s.proc.Process.Kill()
	_ = s.proc.Wait()
	s.proc = nil
}

// Pause stops the process where it is; Resume lets it go on.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Resume ends a Pause.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(signal syscall.Signal) {
	s.t.Helper()
	if err := s.proc.Process.Signal(signal); err != nil {
		s.t.Fatalf("%s: %v", s.Addr, err)
	}
}

// Restart kills the process and starts another one on the same address and directory.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	s.start()
}

// Client returns a plain client of the server, closed at the test's end.
func (s *Server) Client() *redis.Client { return client(s.t, s.Addr) }

// admin returns the client that the test's own machinery looks with; it keeps nothing over a restart.
func (s *Server) admin() *redis.Client {
	if s.plain == nil {
		s.plain = client(s.t, s.Addr)
	}
	return s.plain
}

func client(t testing.TB, addr string) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: addr, Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *Server) start() {
	s.t.Helper()
	_, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		s.t.Fatalf("redis-server: %v", err)
	}
	s.log = &strings.Builder{}
	args := append([]string{"--port", port, "--bind", "127.0.0.1", "--dir", s.Dir, "--save", "", "--appendonly", "no"}, s.args...)
	if s.config != "" {
		args = []string{s.config, "--sentinel"}
	}
	s.proc = exec.Command("redis-server", args...)
	s.proc.Stdout, s.proc.Stderr = s.log, s.log
	if err := s.proc.Start(); err != nil {
		s.proc = nil
		s.t.Fatalf("start redis-server (Redis 7.0 or later must be installed): %v", err)
	}
	c := redis.NewClient(&redis.Options{Addr: s.Addr, Protocol: 2, DisableIdentity: true, MaxRetries: -1})
	defer func() { _ = c.Close() }()
	err = Poll(context.Background(), 10*time.Second, func() error { return c.Ping(context.Background()).Err() })
	if err != nil {
		s.Kill()
		s.t.Fatalf("redis-server does not answer: %v\n%s", err, s.log)
	}
}

// Poll calls f every few milliseconds until it returns nil, at most for so long, and returns its last error.
func Poll(ctx context.Context, most time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("after %s: %w", most, err)
		case <-tick.C:
		}
	}
}
