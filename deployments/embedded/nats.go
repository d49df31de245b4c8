// Package embedded starts the servers that a deployment usually has beside it inside this process, for the demo and for tests.
package embedded

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	// natsReady is how long a server may take to listen; a fresh one takes some 20 ms, one with much to recover longer.
	natsReady = 10 * time.Second
	// natsGlance is how long one look at it takes, so that a start that failed is noticed at once.
	natsGlance = 20 * time.Millisecond
	// natsMemory bounds what JetStream keeps in memory. Everything of ours is in files, so little is needed.
	natsMemory = 64 << 20
)

// RandomPort asks [StartNATS] for any free port.
const RandomPort = server.RANDOM_PORT

// StartNATS starts a NATS server with JetStream that keeps its files in dir and listens on loopback only. Every write is synced
// before it is acknowledged: what survives a crash of the process survives one of the machine. It installs no signal handlers
// and logs nothing. The caller ends it with Shutdown and WaitForShutdown.
func StartNATS(dir string, port int) (*server.Server, error) {
	s, err := server.NewServer(&server.Options{
		Host:               "127.0.0.1",
		Port:               port,
		JetStream:          true,
		StoreDir:           dir,
		JetStreamMaxMemory: natsMemory,
		SyncAlways:         true,
		NoSigs:             true,
	})
	if err != nil {
		return nil, fmt.Errorf("embedded NATS in %s: %w", dir, err)
	}
	fatal := make(fatalLog, 1)
	s.SetLoggerV2(fatal, false, false, false)
	s.Start()
	if err := ready(s, fatal); err != nil {
		s.Shutdown()
		return nil, fmt.Errorf("embedded NATS on 127.0.0.1:%d in %s: %w", port, dir, err)
	}
	return s, nil
}

// ready waits until s listens, or for the reason why it will not.
func ready(s *server.Server, fatal fatalLog) error {
	for deadline := time.Now().Add(natsReady); time.Now().Before(deadline); {
		if s.ReadyForConnections(natsGlance) {
			return nil
		}
		select {
		case reason := <-fatal:
			return errors.New(reason)
		default:
		}
	}
	return fmt.Errorf("does not listen after %s", natsReady)
}

// fatalLog is a logger that keeps the first fatal line, the reason why a server did not start, and drops all else.
type fatalLog chan string

// Fatalf keeps the line.
func (f fatalLog) Fatalf(format string, v ...any) {
	select {
	case f <- fmt.Sprintf(format, v...):
	default:
	}
}

// Noticef drops the line.
func (fatalLog) Noticef(string, ...any) {}

// Warnf drops the line.
func (fatalLog) Warnf(string, ...any) {}

// Errorf drops the line: what matters to us comes back as an error of the call that met it.
func (fatalLog) Errorf(string, ...any) {}

// Debugf drops the line.
func (fatalLog) Debugf(string, ...any) {}

// Tracef drops the line.
func (fatalLog) Tracef(string, ...any) {}
