package lessor

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/annona-gateway/annona/allocator/ledger/factpb"
	"github.com/annona-gateway/annona/shared/lease"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/telemetry"
)

const (
	// denialKeys is how many keys a shard remembers denials of, the latest; denialsEach how many of each.
	denialKeys  = 256
	denialsEach = 16
)

// Denial is cost that a region denied for want of tokens, as one of its items told. TraceID is that of the request that asked
// last, "" where it was not sampled.
type Denial struct {
	At      time.Time
	Region  string
	Cost    limit.Tokens
	TraceID string
}

// Denials returns the recent denials of key, newest first. They are for people who ask why; nothing depends on them, and
// they end with the process.
func (l *Lessor) Denials(key limit.Key) []Denial {
	return l.shards[key.Shard(len(l.shards))].denials.of(key)
}

// denials is a bounded memory of one shard's, by key, the least recently denied forgotten first.
type denials struct {
	mu     sync.Mutex
	keys   map[limit.Key]*list.Element
	recent *list.List // of *denied, newest first
}

// denied is one key's.
type denied struct {
	key      limit.Key
	latest   []Denial          // oldest first
	counters map[string]denier // by region
}

// denier is what a region reported last, in which session: counters are cumulative, a denial is their growth.
type denier struct {
	session uint64
	denied  int64
}

func newDenials() *denials { return &denials{keys: map[limit.Key]*list.Element{}, recent: list.New()} }

// note remembers a denial if the counter in item grew since the last fact about its key and region. The first report since
// the process began only sets the mark, unless its session is new: what it counts may be old.
func (d *denials) note(region string, item *leasepb.Item, decided *factpb.Decided) {
	if item.GetDenied() == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.keyLocked(lease.KeyOf(item))
	last, known := k.counters[region]
	if known = known && last.session == item.GetSession(); !known {
		last = denier{session: item.GetSession()}
	}
	grown := item.GetDenied() - last.denied
	last.denied = max(last.denied, item.GetDenied())
	k.counters[region] = last
	if grown <= 0 || !known && !decided.GetBegins() {
		return
	}
	k.latest = append(k.latest, Denial{
		At: time.Now(), Region: region, Cost: limit.Tokens(grown), TraceID: traceID(item.GetTraceparent()),
	})
	k.latest = slices.Delete(k.latest, 0, max(0, len(k.latest)-denialsEach))
}

func (d *denials) keyLocked(key limit.Key) *denied {
	if e, known := d.keys[key]; known {
		d.recent.MoveToFront(e)
		return valueOf(e)
	}
	if d.recent.Len() >= denialKeys {
		oldest := d.recent.Back()
		delete(d.keys, valueOf(oldest).key)
		d.recent.Remove(oldest)
	}
	k := &denied{key: key, counters: map[string]denier{}}
	d.keys[key] = d.recent.PushFront(k)
	return k
}

func (d *denials) of(key limit.Key) []Denial {
	d.mu.Lock()
	defer d.mu.Unlock()
	e, known := d.keys[key]
	if !known {
		return nil
	}
	latest := slices.Clone(valueOf(e).latest)
	slices.Reverse(latest)
	return latest
}

func valueOf(e *list.Element) *denied {
	k, _ := e.Value.(*denied) // nothing else is ever put into the list
	return k
}

// traceID returns the trace that a W3C traceparent names, "" if it names none.
func traceID(traceparent string) string {
	if traceparent == "" {
		return ""
	}
	span := trace.SpanContextFromContext(telemetry.FromTraceparent(context.Background(), traceparent))
	if !span.HasTraceID() {
		return ""
	}
	return span.TraceID().String()
}
