package gateway

import (
	"math"
	"math/bits"
	"net/http"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/shared/limit"
)

const (
	// maxListed is how many policies the lists name: a header has to stay small.
	maxListed = 8
	// longest stands for "never" in seconds: by then another document may hold.
	longest = 24 * 60 * 60
)

// seconds rounds up to whole seconds.
func seconds(d limit.Micros) int64 {
	if d >= limit.Never {
		return longest
	}
	return int64((max(d, 0) + limit.MicrosPerSecond - 1) / limit.MicrosPerSecond)
}

// window is the time in which a budget's rate brings its whole capacity. A rate such as 100 per minute is kept rounded down to
// a micro-token per second, so the time that its author meant lies between those of the rate and of the next one; the roundest
// in there is it.
func window(b limit.Budget) int64 {
	if b.Rate <= 0 {
		return longest
	}
	capacity := max(b.Capacity.Micro(), 1)
	least, most := seconds(limit.Budget{Rate: b.Rate + 1}.TimeTo(capacity)), int64(b.TimeTo(capacity)/limit.MicrosPerSecond)
	for _, unit := range []int64{24 * 60 * 60, 60 * 60, 60} {
		if round := (least + unit - 1) / unit * unit; round <= most {
			return round
		}
	}
	return least
}

// tightest is the report that the single-valued fields speak of: of the policies that deny the one that does so longest, else
// the one of which the smallest part is left.
func tightest(reports []admit.Report) admit.Report {
	best := reports[0]
	for _, r := range reports[1:] {
		if tighter(r, best) {
			best = r
		}
	}
	return best
}

func tighter(a, b admit.Report) bool {
	if a.Violated || b.Violated {
		return a.Violated && (!b.Violated || a.Reset > b.Reset)
	}
	// a.r/a.q < b.r/b.q without division, by products of up to 10²⁴. An empty budget has nothing left of it.
	if a.Limit.Capacity == 0 || b.Limit.Capacity == 0 {
		return a.Limit.Capacity == 0 && b.Limit.Capacity != 0
	}
	high1, low1 := bits.Mul64(uint64(a.Remaining), uint64(b.Limit.Capacity))
	high2, low2 := bits.Mul64(uint64(b.Remaining), uint64(a.Limit.Capacity))
	return high1 < high2 || (high1 == high2 && low1 < low2)
}

// fields tells clients their limits.
type fields struct {
	sets   HeaderSets
	jitter float64
	epoch  bool
	now    func() time.Time
	random func() float64 // 0 to 1
}

// retryAfter is how many seconds a client waits that was told to: long enough for its request to fit then, and not the same
// for all who were denied together.
func (f fields) retryAfter(in limit.Micros) int64 {
	if in >= limit.Never {
		return longest
	}
	wait := float64(max(in, 0)) / limit.MicrosPerSecond
	if f.jitter > 0 {
		wait += f.random() * max(1, f.jitter*wait)
	}
	return max(1, int64(math.Ceil(wait)))
}

// apply sets the fields of d on header, where an upstream may have left its own. A client reads one coherent account: in each
// set that is sent the stricter of the two stands, whole, and an upstream's set that is not sent stays only if it promises no
// more than ours.
func (f fields) apply(header http.Header, d *admit.Decision) {
	if d == nil {
		return
	}
	header.Del(headerDegraded)
	if d.Degraded != "" {
		header.Set(headerDegraded, d.Degraded)
	}
	if len(d.Reports) == 0 || len(f.sets) == 0 {
		return
	}
	one := tightest(d.Reports)
	theirs := f.heard(header)
	upstream, has := strictest(theirs)
	for _, set := range []string{HeadersIETF, HeadersX, HeadersDraft06} {
		own, told := theirs[set]
		switch {
		case !f.sets.has(set):
			if !told || own.remaining > int64(one.Remaining) {
				f.drop(header, set)
			}
		case set == HeadersIETF:
			f.applyLists(header, d.Reports, upstream, has, told && own == upstream)
		case has && upstream.remaining < int64(one.Remaining):
			f.put(header, set, upstream)
		default:
			f.put(header, set, standing{int64(one.Limit.Capacity), int64(one.Remaining), seconds(one.Reset)})
		}
	}
}

const headerDegraded = "Annona-Degraded"

// put replaces a field and spells its name as its specification does, for those who read it with their eyes; to programs all
// spellings are one.
func put(header http.Header, name, value string) {
	header.Del(name)
	header[name] = []string{value}
}

const (
	headerLimits   = "RateLimit"
	headerPolicies = "RateLimit-Policy"
)

// applyLists sets the lists of draft-ietf-httpapi-ratelimit-headers-11, unless the upstream, if it has told of a limit at all,
// is stricter than all that would stand there: then its own lists stay, or it becomes the one member of ours.
func (f fields) applyLists(header http.Header, reports []admit.Report, upstream standing, has, listed bool) {
	reports = reports[:min(len(reports), maxListed)]
	least := reports[0].Remaining
	policies, limits := make(httpsfv.List, 0, len(reports)), make(httpsfv.List, 0, len(reports))
	for _, r := range reports {
		least = min(least, r.Remaining)
		policy := item(r.Policy.Name, "q", int64(r.Limit.Capacity))
		if w := f.windowOf(r); w > 0 {
			policy.Params.Add("w", w)
		}
		policies = append(policies, policy)
		standing := item(r.Policy.Name, "r", int64(r.Remaining))
		standing.Params.Add("t", seconds(r.Reset))
		limits = append(limits, standing)
	}
	if has && upstream.remaining < int64(least) {
		if listed && isList(header.Values(headerLimits)) {
			if !isList(header.Values(headerPolicies)) {
				header.Del(headerPolicies)
			}
			return
		}
		policies, limits = upstream.lists()
	}
	for name, list := range map[string]httpsfv.List{headerPolicies: policies, headerLimits: limits} {
		header.Del(name)
		if text, err := httpsfv.Marshal(list); err == nil && text != "" { // fails only for a name that is not ASCII
			put(header, name, text)
		}
	}
}

func item(name, parameter string, value int64) httpsfv.Item {
	it := httpsfv.NewItem(name)
	it.Params.Add(parameter, value)
	return it
}

// windowOf is the time that r's limit is about, in seconds; 0 where it is about none.
func (f fields) windowOf(r admit.Report) int64 {
	switch {
	case r.Policy.Algorithm.Windowed():
		return r.Policy.Window.Seconds(f.now())
	case r.Policy.Algorithm == limit.Concurrency:
		return 0
	default:
		return window(r.Limit)
	}
}
