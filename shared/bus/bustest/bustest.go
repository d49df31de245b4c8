// Package bustest gives tests a NATS server with JetStream that can be stopped and started again on the same files.
package bustest

import (
	"net"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/annona-gateway/annona/deployments/embedded"
	"github.com/annona-gateway/annona/shared/bus"
)

// Options say how a server differs from the usual one. The zero value is the usual one: an empty temporary directory.
type Options struct {
	// Dir keeps the files; "" is a temporary directory of the test.
	Dir string
	// Port is where to listen; 0 is any free port.
	Port int
}

// Server is one NATS server of a test. Its port stays the same over restarts, so that clients find it again.
type Server struct {
	dir    string
	port   int
	server *server.Server
}

// Start starts a server, synced always, on a random port of loopback; it ends with the test.
func Start(t testing.TB, opts Options) *Server {
	t.Helper()
	s := &Server{dir: opts.Dir, port: opts.Port}
	if s.port == 0 {
		s.port = embedded.RandomPort
	}
	if s.dir == "" {
		s.dir = t.TempDir()
	}
	s.start(t)
	t.Cleanup(s.Stop)
	return s
}

// URL is where the server listens.
func (s *Server) URL() string { return s.server.ClientURL() }

// Connect returns a connection as the product makes it; it closes with the test.
func (s *Server) Connect(t testing.TB) *nats.Conn {
	t.Helper()
	conn, err := bus.Connect(bus.Config{URLs: []string{s.URL()}, Name: t.Name()})
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// Stop ends the server and keeps its files. Stopping twice is harmless.
func (s *Server) Stop() {
	s.server.Shutdown()
	s.server.WaitForShutdown()
}

// Restart stops the server, if it runs, and starts it again on the same files and port.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop()
	s.start(t)
}

func (s *Server) start(t testing.TB) {
	t.Helper()
	running, err := embedded.StartNATS(s.dir, s.port)
	if err != nil {
		t.Fatalf("start NATS: %v", err)
	}
	address, ok := running.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("NATS listens on %v, want a TCP port", running.Addr())
	}
	s.server, s.port = running, address.Port
}
