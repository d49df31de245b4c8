package bucket_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
	"github.com/annona-gateway/annona/shared/limit"
)

// oneOf is a take of cost 1 from a bucket of scope region.
func oneOf(capacity limit.Tokens) bucket.Request {
	return bucket.Request{Charges: []bucket.Charge{{
		Ref: bucket.Ref{Shard: 7, Key: limit.Key{0xab}}, Policy: "p", Cost: 1, Part: limit.Budget{Capacity: capacity},
	}}}
}

// level peeks at what oneOf's bucket holds.
func level(t *testing.T, store *bucket.Store, capacity limit.Tokens) limit.Tokens {
	t.Helper()
	r := oneOf(capacity)
	r.Charges[0].Cost = 0
	v, err := store.Take(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return v.States[0].Level.Whole()
}

func wantCouldNotAsk(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, bucket.ErrCouldNotAsk) {
		t.Fatalf("err = %v, want one that wraps ErrCouldNotAsk", err)
	}
}

// cutter is a proxy that, when told, lets a request through and keeps its reply.
type cutter struct {
	addr string
	cut  atomic.Bool
	at   atomic.Pointer[string] // cut once a request has this in it
	lost atomic.Int64           // replies kept

	backend atomic.Pointer[string]
}

// lead makes new connections reach another server.
func (c *cutter) lead(backend string) { c.backend.Store(&backend) }

// cutAt keeps the replies to requests that have text in them, and those after; "" ends it.
func (c *cutter) cutAt(text string) {
	c.cut.Store(false)
	c.at.Store(&text)
}

// announce makes the node of a cluster tell everybody the proxy's address in place of its own.
func (c *cutter) announce(t *testing.T, node *buckettest.Server) {
	t.Helper()
	_, port, _ := net.SplitHostPort(c.addr)
	if err := node.Client().ConfigSet(t.Context(), "cluster-announce-port", port).Err(); err != nil {
		t.Fatal(err)
	}
}

// requests passes on what clients say.
func (c *cutter) requests(server, client net.Conn) {
	defer server.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		if at := c.at.Load(); at != nil && *at != "" && strings.Contains(string(buffer[:n]), *at) {
			c.cut.Store(true)
		}
		if _, err := server.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func startCutter(t *testing.T, backend string) *cutter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{addr: listener.Addr().String()}
	c.lead(backend)
	var wg sync.WaitGroup
	ending, end := context.WithCancel(context.Background())
	t.Cleanup(func() { _ = listener.Close(); end(); wg.Wait() })
	wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", *c.backend.Load())
			if err != nil {
				_ = client.Close()
				continue
			}
			context.AfterFunc(ending, func() { _ = client.Close() })
			wg.Go(func() { c.requests(server, client) })
			wg.Go(func() { c.replies(client, server) })
		}
	})
	return c
}

func (c *cutter) replies(client, server net.Conn) {
	defer client.Close()
	defer server.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		if c.cut.Load() {
			c.lost.Add(1)
			return
		}
		if _, err := client.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// TestReplyLost: a reply lost after the script ran is could not ask; the charge happened once and nothing is retried.
func TestReplyLost(t *testing.T) {
	server := buckettest.StartRedis(t)
	proxy := startCutter(t, server.Addr)
	store := openStore(t, bucket.Config{Addrs: []string{proxy.addr}})
	if _, err := store.Take(t.Context(), oneOf(10)); err != nil {
		t.Fatal(err)
	}
	proxy.cut.Store(true)
	_, err := store.Take(t.Context(), oneOf(10))
	proxy.cut.Store(false)
	wantCouldNotAsk(t, err)
	if got := proxy.lost.Load(); got != 1 {
		t.Errorf("%d replies were lost, want 1: it was sent again", got)
	}
	if got := level(t, store, 10); got != 8 {
		t.Errorf("level = %d, want 8: charged once each", got)
	}
}

// TestCase07_SlowStore: a store that stands still costs each take its timeout, and recovers without a restart.
func TestCase07_SlowStore(t *testing.T) {
	server := buckettest.StartRedis(t)
	store, err := bucket.Open(bucket.Config{Addrs: []string{server.Addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	client := server.Client()
	if err := buckettest.Poll(t.Context(), 5*time.Second, func() error { _, err := store.Take(t.Context(), oneOf(1000)); return err }); err != nil {
		t.Fatal(err)
	}
	if err := client.Do(t.Context(), "CLIENT", "PAUSE", "1500", "ALL").Err(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			start := time.Now()
			_, err := store.Take(t.Context(), oneOf(1000))
			if !errors.Is(err, bucket.ErrCouldNotAsk) {
				t.Errorf("err = %v, want could not ask", err)
			}
			if took := time.Since(start); took > bucket.DefaultTimeout+450*time.Millisecond {
				t.Errorf("took %s, want about %s", took, bucket.DefaultTimeout)
			}
		})
	}
	wg.Wait()
	if err := buckettest.Poll(t.Context(), 5*time.Second, func() error { _, err := store.Take(t.Context(), oneOf(1000)); return err }); err != nil {
		t.Fatalf("no recovery: %v", err)
	}
}

// TestCallersDeadline: the caller's deadline holds where it is sooner.
func TestCallersDeadline(t *testing.T) {
	store := openStore(t, bucket.Config{Addrs: []string{miniredis.RunT(t).Addr()}, ServerID: "embedded"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := store.Take(ctx, oneOf(1))
	wantCouldNotAsk(t, err)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v, want the cause too", err)
	}
}

// TestServerErrors: every error of the server is could not ask, and the next take that is answered is right.
func TestServerErrors(t *testing.T) {
	server := miniredis.RunT(t)
	store := openStore(t, bucket.Config{Addrs: []string{server.Addr()}, ServerID: "embedded"})
	for _, message := range []string{
		"LOADING Redis is loading the dataset in memory",
		"READONLY You can't write against a read only replica.",
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
	} {
		server.SetError(message)
		_, err := store.Take(t.Context(), oneOf(5))
		server.SetError("")
		wantCouldNotAsk(t, err)
	}
	if _, err := store.Take(t.Context(), oneOf(5)); err != nil {
		t.Fatal(err)
	}
	if got := level(t, store, 5); got != 4 {
		t.Errorf("level = %d, want 4", got)
	}
}

// TestScriptError: a record of another type makes the script fail; nothing of a take with several charges was charged.
func TestScriptError(t *testing.T) {
	server := buckettest.StartRedis(t)
	store := openStore(t, bucket.Config{Addrs: []string{server.Addr}})
	r := oneOf(5)
	broken := r.Charges[0]
	broken.Key[15] = 1
	if err := server.Client().Set(t.Context(), "annona:1:{s07}:b:"+broken.Key.String(), "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	r.Charges = append(r.Charges, broken)
	_, err := store.Take(t.Context(), r)
	wantCouldNotAsk(t, err)
	if got := level(t, store, 5); got != 5 {
		t.Errorf("level = %d, want 5", got)
	}
}

// TestE4_OutOfMemory: a write refused for memory is could not ask, and no part of the take happened.
func TestE4_OutOfMemory(t *testing.T) {
	server := buckettest.StartRedis(t, "--maxmemory-policy", "noeviction")
	store := openStore(t, bucket.Config{Addrs: []string{server.Addr}})
	r := oneOf(5)
	second := r.Charges[0]
	second.Key[15] = 1
	r.Charges = append(r.Charges, second)
	if _, err := store.Take(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	limitMemory := func(bytes string) {
		t.Helper()
		if err := server.Client().ConfigSet(t.Context(), "maxmemory", bytes).Err(); err != nil {
			t.Fatal(err)
		}
	}
	limitMemory("1")
	_, err := store.Take(t.Context(), r)
	wantCouldNotAsk(t, err)
	limitMemory("0")
	if got := level(t, store, 5); got != 4 {
		t.Errorf("level = %d, want 4", got)
	}
}

// begun counts the epochs that a store began, by reason.
type begun struct {
	sync.Mutex
	reasons []string
}

func (b *begun) add(_ int, reason string) {
	b.Lock()
	defer b.Unlock()
	b.reasons = append(b.reasons, reason)
}

func (b *begun) String() string {
	b.Lock()
	defer b.Unlock()
	return strings.Join(b.reasons, " ")
}

// TestE1_OtherServer: a call that carries another server id than the record's is not run; the store begins a new epoch and
// asks again.
func TestE1_OtherServer(t *testing.T) {
	server := miniredis.RunT(t)
	var first, second begun
	a := openStore(t, bucket.Config{Addrs: []string{server.Addr()}, ServerID: "one", EpochBegun: first.add})
	b := openStore(t, bucket.Config{Addrs: []string{server.Addr()}, ServerID: "two", EpochBegun: second.add})
	for i, store := range []*bucket.Store{a, b, b, a} {
		if _, err := store.Take(t.Context(), oneOf(10)); err != nil {
			t.Fatal(err)
		}
		if got, want := level(t, store, 10), limit.Tokens(9-i); got != want {
			t.Errorf("level after take %d = %d, want %d: charged once, kept over the epochs", i+1, got, want)
		}
	}
	if got := first.String() + ", " + second.String(); got != "missing server, server" {
		t.Errorf("epochs begun = %s", got)
	}
}

// TestE1_RestartedServer: a server that restarted, with its data or without, is another one.
func TestE1_RestartedServer(t *testing.T) {
	for name, c := range map[string]struct {
		args   []string
		reason string
		level  limit.Tokens
	}{
		"with its data":    {[]string{"--appendonly", "yes", "--appendfsync", "always"}, "server", 8},
		"without its data": {nil, "missing", 9},
	} {
		t.Run(name, func(t *testing.T) {
			server := buckettest.StartRedis(t, c.args...)
			var epochs begun
			store := openStore(t, bucket.Config{Addrs: []string{server.Addr}, EpochBegun: epochs.add})
			if _, err := store.Take(t.Context(), oneOf(10)); err != nil {
				t.Fatal(err)
			}
			server.Kill()
			_, err := store.Take(t.Context(), oneOf(10))
			wantCouldNotAsk(t, err)
			server.Restart()
			err = buckettest.Poll(t.Context(), 10*time.Second, func() error { _, err := store.Take(t.Context(), oneOf(10)); return err })
			if err != nil {
				t.Fatalf("no recovery: %v", err)
			}
			if got := level(t, store, 10); got != c.level {
				t.Errorf("level = %d, want %d", got, c.level)
			}
			if got := epochs.String(); got != "missing "+c.reason {
				t.Errorf("epochs begun = %s, want missing %s", got, c.reason)
			}
		})
	}
}

// TestE3_Vouched: where nothing was ever spent an unknown leased bucket is full at once; an epoch that is there stays.
func TestE3_Vouched(t *testing.T) {
	server := miniredis.RunT(t)
	store := openStore(t, bucket.Config{Addrs: []string{server.Addr()}, ServerID: "embedded"})
	leased := oneOf(5)
	leased.Charges[0].Leased, leased.Charges[0].Part.Rate = true, limit.MicroPerToken
	young := leased.Charges[0]
	young.Shard = 8
	if v, err := store.Take(t.Context(), bucket.Request{Charges: []bucket.Charge{young}}); err != nil || v.Outcome != bucket.Denied {
		t.Fatalf("before: %+v, %v, want denied", v, err)
	}
	if err := store.Vouch(t.Context(), 32); err != nil {
		t.Fatal(err)
	}
	if v, err := store.Take(t.Context(), leased); err != nil || v.Outcome != bucket.Admitted || v.States[0].Level.Whole() != 4 {
		t.Errorf("a vouched shard: %+v, %v, want admitted and 4 left", v, err)
	}
	if v, err := store.Take(t.Context(), bucket.Request{Charges: []bucket.Charge{young}}); err != nil || v.Outcome != bucket.Denied {
		t.Errorf("a shard that had an epoch: %+v, %v, want denied", v, err)
	}
}
