package admit

import (
	"cmp"
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

const (
	// againAfter is how long after a holder could not be made known nobody tries again: each attempt asks every shard, and makes
	// a request wait for it.
	againAfter = 500 * time.Millisecond
	// defaultPatience is Options.Patience where there is none.
	defaultPatience = 50 * time.Millisecond
	// maxKeepers is from how many holders on the newest stays, though a take of it is unknown: every one is renewed in every
	// shard, and a shard knows 1024 of all gateways.
	maxKeepers = 32
)

// keeper keeps the slots of one holder: as long as it is renewed, they are held (PROTOCOL.md B8).
type keeper struct {
	id bucket.Holder

	mu      sync.Mutex
	lost    bool
	tainted bool      // a take may have left slots of which nobody has a receipt
	sent    time.Time // when the last renewal that succeeded was sent
	held    map[*Hold]*watch
}

// watch is what a keeper knows of a request that holds slots of it.
type watch struct {
	shards []int // of the slots that must not be lost: those of policies that enforce
	gone   bool  // some are
	lost   func()
}

// begun notes that c's slots are h's.
func (k *keeper) begun(h *Hold, c *claim) {
	k.mu.Lock()
	defer k.mu.Unlock()
	w := k.held[h]
	if w == nil {
		w = &watch{}
		k.held[h] = w
	}
	if !c.shadow {
		w.shards = append(w.shards, c.charge.Shard)
		w.gone = w.gone || k.lost
	}
}

// moved makes from's slots to's.
func (k *keeper) moved(from, to *Hold) {
	k.mu.Lock()
	defer k.mu.Unlock()
	w, other := k.held[to], k.held[from]
	delete(k.held, from)
	switch {
	case w == nil:
		k.held[to] = other
	case other != nil:
		w.shards, w.gone = append(w.shards, other.shards...), w.gone || other.gone
	}
}

func (k *keeper) onLost(h *Hold, f func()) {
	k.mu.Lock()
	w := k.held[h]
	gone := w != nil && w.gone
	if w != nil && !gone {
		w.lost = f
	}
	k.mu.Unlock()
	if gone {
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

// taint notes that a take by k's holder ended, and nobody knows how.
func (k *keeper) taint() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tainted = true
}

func (k *keeper) isTainted() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.tainted
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

// lose ends the requests that hold slots of k in one of shards, or anywhere where that is nil, and returns how many that are.
func (k *keeper) lose(shards []int) (ended int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lost = k.lost || shards == nil
	for _, w := range k.held {
		if w.gone || !slices.ContainsFunc(w.shards, func(shard int) bool { return shards == nil || slices.Contains(shards, shard) }) {
			continue
		}
		w.gone = true
		if w.lost != nil {
			go w.lost() // it ends a request, which calls back
		}
		ended++
	}
	return ended
}

// keepers holds this process' slots: new requests take them by the newest holder, older ones keep theirs to their end.
type keepers struct {
	admitter *Admitter

	mu     sync.Mutex
	all    []*keeper // the newest last; few, for a holder goes with its last request
	fresh  bool      // the newest may be taken by
	begins *beginning
	failed struct {
		at  time.Time
		err error
	}
}

// beginning is a holder that is being made known, for all who wait for it.
type beginning struct {
	done   chan struct{}
	keeper *keeper
	err    error
}

// current returns the keeper to take slots by, made known to the store first where there is none. It waits for that as long as
// a request has patience with the store.
func (ks *keepers) current(ctx context.Context) (*keeper, error) {
	ks.mu.Lock()
	switch {
	case ks.fresh:
		defer ks.mu.Unlock()
		return ks.all[len(ks.all)-1], nil
	case ks.admitter.options.Settler == nil:
		defer ks.mu.Unlock()
		return nil, fmt.Errorf("%w: nothing here can hold slots", bucket.ErrCouldNotAsk)
	case ks.begins == nil && ks.failed.err != nil && time.Since(ks.failed.at) < againAfter:
		defer ks.mu.Unlock()
		return nil, ks.failed.err
	case ks.begins == nil:
		ks.begins = &beginning{done: make(chan struct{})}
		go ks.begin(context.WithoutCancel(ctx), ks.begins)
	}
	b := ks.begins
	ks.mu.Unlock()
	patience := time.NewTimer(cmp.Or(ks.admitter.options.Patience, defaultPatience))
	defer patience.Stop()
	select {
	case <-b.done:
		return b.keeper, b.err
	case <-patience.C:
		return nil, fmt.Errorf("hold slots: %w: no answer in time", bucket.ErrNotRun)
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w: the client left", bucket.ErrNotRun, ctx.Err())
	}
}

// begin makes a holder known. It ends when the store's patience does.
func (ks *keepers) begin(ctx context.Context, b *beginning) {
	k := &keeper{id: bucket.NewHolder(), sent: time.Now(), held: map[*Hold]*watch{}}
	err := ks.admitter.options.Settler.Hold(ctx, k.id, ks.admitter.Shards())
	ks.mu.Lock()
	defer ks.mu.Unlock()
	ks.begins = nil
	if err != nil {
		b.err = fmt.Errorf("hold slots: %w: %w", bucket.ErrNotRun, err) // what asks for a holder has not taken yet
		ks.failed.at, ks.failed.err = time.Now(), b.err
	} else {
		b.keeper = k
		ks.all, ks.fresh = append(ks.all, k), true
	}
	close(b.done)
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
		if s := ks.admitter.Snapshot(); s != nil && s.slotted {
			_, _ = ks.current(ctx) // so that no request waits for it; those that come ask again
		}
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
			if k.isTainted() && len(all) < maxKeepers {
				ks.retire(k)
			}
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
