package embedded_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/annona-gateway/annona/deployments/embedded"
)

func TestATakenPortIsAClearMessageAtOnce(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal("not a TCP address")
	}
	const most = 5 * time.Second
	began := time.Now()
	s, err := embedded.StartNATS(t.TempDir(), address.Port)
	if err == nil {
		s.Shutdown()
		t.Fatal("two servers on one port")
	}
	if !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("error = %v, want that the port is taken", err)
	}
	if took := time.Since(began); took > most {
		t.Errorf("it took %s to say so, want at most %s", took, most)
	}
}

func TestTheServerListensOnLoopbackOnlyAndKeepsJetStream(t *testing.T) {
	s, err := embedded.StartNATS(t.TempDir(), embedded.RandomPort)
	if err != nil {
		t.Fatal(err)
	}
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if address, ok := s.Addr().(*net.TCPAddr); !ok || !address.IP.IsLoopback() {
		t.Errorf("it listens on %v, want loopback", s.Addr())
	}
	if !s.JetStreamEnabled() {
		t.Error("it has no JetStream")
	}
}
