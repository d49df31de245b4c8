package e2e_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/annona-gateway/annona/e2e/cluster"
)

// oneWay is the delay between every region and the allocator, in each direction.
const oneWay = 40 * time.Millisecond

// policies has one path for each promise, so that tests do not spend each other's tokens.
const policies = `schema: 1
policies:
  - {name: hundred, match: {paths: [/hundred]}, key: [user], algorithm: token_bucket, rate: 50/s, burst: 100, scope: global, on_failure: closed}
  - {name: small, match: {paths: [/small]}, key: [user], algorithm: token_bucket, rate: 5/s, burst: 10, scope: global, on_failure: closed}
  - {name: four, match: {paths: [/four]}, key: [user], algorithm: token_bucket, rate: 4/min, scope: global, on_failure: closed}
  - {name: one, match: {paths: [/one]}, key: [user], algorithm: token_bucket, rate: 1/h, scope: region, on_failure: closed}
  - {name: org-global, match: {paths: [/org-global]}, key: [all], algorithm: token_bucket, rate: 10/min, scope: global, on_failure: closed}
  - {name: user-global, match: {paths: [/org-global]}, key: [user], algorithm: token_bucket, rate: 5/min, scope: global, on_failure: closed}
  - {name: org-region, match: {paths: [/org-region]}, key: [all], algorithm: token_bucket, rate: 10/min, scope: region, on_failure: closed}
  - {name: user-region, match: {paths: [/org-region]}, key: [user], algorithm: token_bucket, rate: 5/min, scope: region, on_failure: closed}
  - {name: bench-region, match: {paths: [/bench-region]}, key: [user], algorithm: token_bucket, rate: 1000000/s, scope: region, on_failure: closed}
  - {name: bench-global, match: {paths: [/bench-global]}, key: [user], algorithm: token_bucket, rate: 1000000/s, scope: global, on_failure: closed}
  - {name: open, match: {paths: [/open]}, key: [user], algorithm: token_bucket, rate: 50/s, burst: 100, scope: global, on_failure: {redis: open, allocator: local}}
`

// suite is what the tests of this package share: programs built once and one cluster.
type suite struct {
	dir string
	bin cluster.Binaries

	start   sync.Once
	running *cluster.Cluster
	err     error
}

var shared suite

func TestMain(m *testing.M) {
	if ports := os.Getenv(demoPorts); ports != "" {
		if err := runDemo(strings.Split(ports, ",")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(shared.run(m))
}

func (s *suite) run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "annona-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if s.bin, err = cluster.Build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s.dir = dir
	code := m.Run()
	if s.running != nil {
		s.running.Close()
	}
	return code
}

// cluster returns the one that tests share, started by the first that asks.
func (s *suite) cluster(t testing.TB) *cluster.Cluster {
	t.Helper()
	s.start.Do(func() {
		s.running, s.err = cluster.Start(s.bin, cluster.Options{
			Dir: s.dir, Policies: policies, Users: users(), OneWay: oneWay, Gateways: 2,
		})
		if s.err == nil {
			s.err = s.running.Age(t.Context(), time.Hour)
		}
	})
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.running
}

// users are key-0 … key-299, each a user of its own, so that every test spends on fresh ones.
func users() map[string][2]string {
	all := make(map[string][2]string)
	for i := range 300 {
		all[fmt.Sprintf("key-%d", i)] = [2]string{fmt.Sprintf("user-%d", i), "free"}
	}
	return all
}

var nextUser struct {
	sync.Mutex
	n int
}

// freshKey returns an API key that no other test has used.
func freshKey(t *testing.T) string {
	t.Helper()
	nextUser.Lock()
	defer nextUser.Unlock()
	key := fmt.Sprintf("key-%d", nextUser.n)
	if nextUser.n++; nextUser.n > 300 {
		t.Fatal("out of users; add some in users()")
	}
	return key
}
