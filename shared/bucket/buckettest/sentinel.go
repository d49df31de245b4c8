package buckettest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Master is the name by which the sentinels of StartSentinels know their master.
const Master = "region"

// Sentinels are a master, its replica, and the three sentinels that watch them, started and owned by a test.
type Sentinels struct {
	Master, Replica *Server // as they began
	Watchers        []*Server

	t testing.TB
}

// StartSentinels starts all five and waits until the sentinels know each other and the replica follows. A master that is silent
// for half a second counts as lost.
func StartSentinels(t testing.TB, args ...string) *Sentinels {
	t.Helper()
	args = append([]string{"--repl-diskless-sync-delay", "0", "--maxmemory-policy", "noeviction"}, args...)
	s := &Sentinels{t: t, Master: StartRedis(t, args...)}
	host, port, _ := net.SplitHostPort(s.Master.Addr)
	s.Replica = StartRedis(t, append([]string{"--replicaof", host + " " + port}, args...)...)
	config := fmt.Sprintf("sentinel monitor %s %s %s 2\nsentinel down-after-milliseconds %s 500\nsentinel failover-timeout %s 3000\n",
		Master, host, port, Master, Master)
	s.await("the replica follows", func() bool {
		report, _ := s.Replica.admin().Info(context.Background(), "replication").Result()
		return infoField(report, "master_link_status") == "up"
	})
	for range 3 {
		s.Watchers = append(s.Watchers, startSentinel(t, config))
	}
	s.await("the sentinels know all", func() bool {
		for _, watcher := range s.Watchers {
			state, _ := watcher.admin().Do(context.Background(), "SENTINEL", "MASTER", Master).StringSlice()
			known := map[string]string{}
			for i := 0; i+1 < len(state); i += 2 {
				known[state[i]] = state[i+1]
			}
			if known["num-other-sentinels"] != "2" || known["num-slaves"] != "1" || known["flags"] != "master" {
				return false
			}
		}
		return true
	})
	return s
}

// startSentinel starts one sentinel on a free port.
func startSentinel(t testing.TB, config string) *Server {
	t.Helper()
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Addr: fmt.Sprintf("127.0.0.1:%d", port), Dir: t.TempDir(), t: t}
	s.config = filepath.Join(s.Dir, "sentinel.conf") // which a sentinel rewrites
	text := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\n%s", port, s.Dir, config)
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start()
	t.Cleanup(s.Kill)
	return s
}

// Addrs are the sentinels' addresses.
func (s *Sentinels) Addrs() []string {
	var all []string
	for _, watcher := range s.Watchers {
		all = append(all, watcher.Addr)
	}
	return all
}

// Promoted waits until most sentinels name the replica as the master, and it is one.
func (s *Sentinels) Promoted() {
	s.t.Helper()
	_, port, _ := net.SplitHostPort(s.Replica.Addr)
	s.await("the replica is promoted", func() bool {
		named := 0
		for _, watcher := range s.Watchers {
			pair, _ := watcher.admin().Do(context.Background(), "SENTINEL", "GET-MASTER-ADDR-BY-NAME", Master).StringSlice()
			if len(pair) == 2 && pair[1] == port {
				named++
			}
		}
		report, _ := s.Replica.admin().Info(context.Background(), "replication").Result()
		return named > len(s.Watchers)/2 && infoField(report, "role") == "master"
	})
}

func (s *Sentinels) await(what string, is func() bool) {
	s.t.Helper()
	err := Poll(context.Background(), 20*time.Second, func() error {
		if !is() {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
}
