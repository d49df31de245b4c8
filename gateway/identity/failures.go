package identity

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// A guesser gets maxFailures wrong credentials a failureWindow from one address (with its prefix: an IPv6 client owns its /64).
const (
	maxFailures   = 50
	failureWindow = time.Minute
	// maxFailureAddrs bounds the memory, to some 10 MB. Where more addresses fail in one window than that, the one that failed
	// the longest ago is forgotten, so such an attacker buys guesses with addresses.
	maxFailureAddrs = 1 << 16
	// maxRight is how many credentials are remembered as right.
	maxRight = 1 << 13
)

// TooManyFailuresError is for a credential that was not looked at, because of all the wrong ones from its address.
type TooManyFailuresError struct {
	Wait time.Duration // until the next is
}

func (e *TooManyFailuresError) Error() string {
	return "too many wrong credentials from this address; the next is checked in " + strconv.FormatInt(e.Seconds(), 10) + " s"
}

// Seconds is Wait rounded up.
func (e *TooManyFailuresError) Seconds() int64 {
	return int64((e.Wait + time.Second - 1) / time.Second)
}

// Failures counts wrong credentials by address and remembers right ones. Both are bounded. It is safe for any number of goroutines.
type Failures struct {
	mu    sync.Mutex
	addrs *simplelru.LRU[netip.Addr, failureCount]

	// lately holds a part of the hash of each credential at a place that another part of it names; one that comes to a place
	// takes it. That a wrong credential is taken for one that was right only means that it is checked.
	lately [maxRight]atomic.Uint64
}

type failureCount struct {
	wrong int
	ends  time.Time
}

// NewFailures returns one that has seen none.
func NewFailures() *Failures {
	addrs, err := simplelru.NewLRU[netip.Addr, failureCount](maxFailureAddrs, nil)
	if err != nil {
		panic(err) // a size that is not positive
	}
	return &Failures{addrs: addrs}
}

// Wait returns for how long the credential with the SHA-256 sum is not looked at if it comes from addr, 0 if it is: one that was
// right lately always is.
func (f *Failures) Wait(addr netip.Addr, sum [32]byte, now time.Time) time.Duration {
	if f.wasRight(sum) {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if count, known := f.addrs.Peek(addr); known && count.wrong >= maxFailures {
		return max(0, count.ends.Sub(now))
	}
	return 0
}

// Wrong counts a wrong credential.
func (f *Failures) Wrong(addr netip.Addr, sum [32]byte, now time.Time) {
	place, tag := placeOf(sum)
	f.lately[place].CompareAndSwap(tag, 0)
	f.mu.Lock()
	defer f.mu.Unlock()
	count, known := f.addrs.Peek(addr)
	if !known || !now.Before(count.ends) {
		count = failureCount{ends: now.Add(failureWindow)}
	}
	count.wrong++
	f.addrs.Add(addr, count)
}

// Right remembers a right credential.
func (f *Failures) Right(sum [32]byte) {
	if place, tag := placeOf(sum); f.lately[place].Load() != tag {
		f.lately[place].Store(tag)
	}
}

func (f *Failures) wasRight(sum [32]byte) bool {
	place, tag := placeOf(sum)
	return f.lately[place].Load() == tag
}

func placeOf(sum [32]byte) (place int, tag uint64) {
	return int(binary.BigEndian.Uint16(sum[:]) % maxRight), binary.BigEndian.Uint64(sum[8:]) | 1 // 0 is nobody's
}
