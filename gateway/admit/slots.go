package admit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
)

// ErrSlotsLost is why a request is ended whose slots can be kept no longer.
var ErrSlotsLost = errors.New("the request's slots could not be renewed for 10 s, so that others may have them by now")

// keeper keeps the slots of one holder: as long as it is renewed, they are held (PROTOCOL.md B8).
type keeper struct {
	id bucket.Holder

	mu   sync.Mutex
	lost bool
	sent time.Time // when the last renewal that succeeded was sent
	held map[*Hold]func()
}

func (k *keeper) begun(h *Hold) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held[h] = nil
}

func (k *keeper) onLost(h *Hold, f func()) {
	k.mu.Lock()
	_, held := k.held[h]
	lost := k.lost
	if held && !lost {
		k.held[h] = f
	}
	k.mu.Unlock()
	if lost {
		f()
	}
}

func (k *keeper) ended(h *Hold) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.held, h)
}

// idle is true where no request holds a slot.
func (k *keeper) idle() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.held) == 0
}

// renewed notes when a renewal was sent that succeeded; it is false where it came too late.
func (k *keeper) renewed(sent time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lost || time.Since(k.sent) >= bucket.HolderLasts {
		return false
	}
	k.sent = sent
	return true
}

// left is for how long the slots are still held, if no renewal succeeds.
func (k *keeper) left() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lost {
		return 0
	}
	return time.Until(k.sent.Add(bucket.HolderLasts))
}

// lose ends the requests that hold slots of k in one of shards, or all where that is nil, and returns how many that are.
func (k *keeper) lose(shards []int) (ended int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lost = k.lost || shards == nil
	for h, f := range k.held {
		if shards != nil && !h.holdsIn(shards) {
			continue
		}
		if f != nil {
			go f() // it ends a request, which calls back
		}
		delete(k.held, h)
		ended++
	}
	return ended
}

// keepers holds this process' slots: new requests take them by the newest holder, older ones keep theirs to their end.
type keepers struct {
	admitter *Admitter

	begin sync.Mutex // held while a holder is made known
	mu    sync.Mutex
	all   []*keeper // the newest last; few, for a holder goes with its last request
	fresh bool      // the newest may be taken by
}

// current returns the keeper to take slots by, made known to the store first where there is none.
func (ks *keepers) current(ctx context.Context) (*keeper, error) {
	if k := ks.newest(); k != nil {
		return k, nil
	}
	ks.begin.Lock()
	defer ks.begin.Unlock()
	if k := ks.newest(); k != nil {
		return k, nil
	}
	if ks.admitter.options.Settler == nil {
		return nil, fmt.Errorf("%w: nothing here can hold slots", bucket.ErrCouldNotAsk)
	}
	k := &keeper{id: bucket.NewHolder(), sent: time.Now(), held: map[*Hold]func(){}}
	if err := ks.admitter.options.Settler.Hold(ctx, k.id, ks.admitter.Shards()); err != nil {
		return nil, fmt.Errorf("hold slots: %w", err)
	}
	ks.mu.Lock()
	defer ks.mu.Unlock()
	ks.all, ks.fresh = append(ks.all, k), true
	return k, nil
}

func (ks *keepers) newest() *keeper {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	if !ks.fresh {
		return nil
	}
	return ks.all[len(ks.all)-1]
}

// retire has no more requests take slots by k.
func (ks *keepers) retire(k *keeper) {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	if ks.fresh && ks.all[len(ks.all)-1] == k {
		ks.fresh = false
	}
}

// run renews what is held every second until ctx ends. A holder that cannot be renewed ends its requests in time, by its own timer,
// whatever a call to the store takes.
func (ks *keepers) run(ctx context.Context) {
	tick := time.NewTicker(bucket.RenewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		ks.mu.Lock()
		all := slices.Clone(ks.all)
		ks.mu.Unlock()
		var beside sync.WaitGroup
		for _, k := range all {
			beside.Go(func() { ks.renew(ctx, k) })
		}
		beside.Wait()
		ks.drop()
	}
}

// renew keeps k's slots for another while, or ends its requests.
func (ks *keepers) renew(ctx context.Context, k *keeper) {
	most := min(k.left(), bucket.RenewEvery)
	if most > 0 {
		timed, cancel := context.WithTimeout(ctx, most)
		sent := time.Now()
		gone, err := ks.admitter.options.Settler.Renew(timed, k.id, ks.admitter.Shards())
		cancel()
		if len(gone) > 0 {
			ks.retire(k)
			ks.tell(ctx, k.lose(gone))
		}
		if err == nil && k.renewed(sent) || k.left() > bucket.RenewEvery {
			return // or there is time for another attempt
		}
	}
	ks.retire(k)
	ks.tell(ctx, k.lose(nil))
}

// tell says how many requests were ended, if any.
func (ks *keepers) tell(ctx context.Context, n int) {
	if n > 0 {
		ks.admitter.options.Telemetry.Log.WarnContext(ctx, "requests were ended: "+ErrSlotsLost.Error(), "requests", n)
	}
}

// drop forgets the holders that are lost, and those that nobody needs: older ones without requests.
func (ks *keepers) drop() {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	newest := len(ks.all) - 1
	kept := ks.all[:0]
	for i, k := range ks.all {
		if (ks.fresh && i == newest) || (k.left() > 0 && !k.idle()) {
			kept = append(kept, k)
		}
	}
	clear(ks.all[len(kept):])
	ks.all = kept
}
