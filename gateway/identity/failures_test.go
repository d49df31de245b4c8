package identity_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/annona-gateway/annona/gateway/identity"
)

func pass(d time.Duration) { <-time.After(d) }

// numbered is client i of many.
func numbered(i int) identity.Client {
	var b [16]byte
	b[0] = 0x20
	binary.BigEndian.PutUint32(b[4:], uint32(i))
	addr := netip.AddrFrom16(b)
	return identity.Client{Addr: addr, Network: addr}
}

func TestAGuesserIsStoppedAndItsNeighboursAreNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := reader(t, identity.Config{}, keyOf("alice")+keyOf("bob")+keyOf("carol"))
		identify := func(key string, client identity.Client) error {
			_, err := r.Identify(request(key), client)
			return err
		}
		if err := identify("alice", somewhere()); err != nil {
			t.Fatal(err)
		}
		guesses := 0
		for ; errors.Is(identify("guess-"+strconv.Itoa(guesses), somewhere()), identity.ErrWrongCredential); guesses++ {
			pass(time.Second)
		}
		if guesses != 50 {
			t.Errorf("%d guesses a minute were looked at, want 50", guesses)
		}
		// bob's key would be a lucky guess: it is not looked at. alice was right before, and other addresses do not suffer.
		stopped, ok := errors.AsType[*identity.TooManyFailuresError](identify("bob", somewhere()))
		if !ok || stopped.Seconds() != 10 {
			t.Errorf("a right guess: %v, want 10 s to wait", stopped)
		}
		if err := identify("alice", somewhere()); err != nil {
			t.Errorf("a client behind the same address: %v", err)
		}
		if err := identify("carol", numbered(1)); err != nil {
			t.Errorf("another address: %v", err)
		}
		if _, err := r.Identify(request(), somewhere()); err != nil {
			t.Errorf("a request without a credential is no guess: %v", err)
		}
		// Another address in the same network is the same guesser.
		neighbour := somewhere()
		neighbour.Addr = neighbour.Addr.Next()
		if _, ok = errors.AsType[*identity.TooManyFailuresError](identify("bob", neighbour)); !ok {
			t.Error("a guesser goes on from the next address of its network")
		}
		pass(time.Duration(stopped.Seconds()) * time.Second)
		if err := identify("bob", somewhere()); err != nil {
			t.Errorf("after the wait: %v", err)
		}
	})
}

// A credential that was right and is no longer is a guess like any other.
func TestACredentialThatWentBadIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := tokenReader(t, allKeys(t), identity.Config{})
		token := bearer(edToken(t, "ed", map[string]any{"exp": time.Now().Add(time.Second).Unix()}))
		if _, err := r.Identify(token, somewhere()); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		var err error
		for range 51 {
			_, err = r.Identify(token, somewhere())
		}
		if _, ok := errors.AsType[*identity.TooManyFailuresError](err); !ok {
			t.Errorf("an expired token, 51 times: %v", err)
		}
	})
}

// A million spoofed keys from a million addresses: memory has a bound.
func TestAMillionSpoofedKeysKeepMemoryBounded(t *testing.T) {
	r := reader(t, identity.Config{}, keyOf("alice"))
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	req := request("x")
	before := heap()
	for i := range 1_000_000 {
		req.Header["X-Api-Key"][0] = "spoofed-" + strconv.Itoa(i)
		if _, err := r.Identify(req, numbered(i)); !errors.Is(err, identity.ErrWrongCredential) {
			t.Fatal(err)
		}
	}
	after := heap()
	if n := r.FailureAddrs(); n > identity.MaxFailureAddrs {
		t.Errorf("%d addresses are remembered, want at most %d", n, identity.MaxFailureAddrs)
	}
	if grown := int64(after) - int64(before); grown > 32<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	if _, err := r.Identify(request("alice"), numbered(-1)); err != nil {
		t.Error(err)
	}
	runtime.KeepAlive(r)
}
