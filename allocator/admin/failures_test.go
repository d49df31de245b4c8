package admin

import (
	"net/netip"
	"testing"
	"time"
)

// An attacker with many addresses gets no memory out of it, and the latest of them stay counted.
func TestFailuresAreBounded(t *testing.T) {
	f := newFailures()
	now := time.Unix(0, 0)
	addr := func(i int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
	}
	for i := range 2 * maxFailureAddrs {
		now = now.Add(time.Millisecond)
		f.judge(addr(i), now)
		if len(f.addrs) > maxFailureAddrs {
			t.Fatalf("%d addresses are counted, at most %d may be", len(f.addrs), maxFailureAddrs)
		}
	}
	if _, known := f.addrs[addr(2*maxFailureAddrs-1)]; !known {
		t.Error("the latest address is forgotten")
	}
	f.judge(addr(0), now.Add(2*failureWindow))
	if len(f.addrs) != 1 {
		t.Errorf("%d addresses are counted after every window has passed, want 1", len(f.addrs))
	}
}
