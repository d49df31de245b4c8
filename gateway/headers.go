package gateway

import (
	"math"
	"net/http"
	"strconv"
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
	// a.r/a.q < b.r/b.q without division; both factors are at most 10⁹. An empty budget has nothing left of it.
	if a.Limit.Capacity == 0 || b.Limit.Capacity == 0 {
		return a.Limit.Capacity == 0 && b.Limit.Capacity != 0
	}
	return a.Remaining*b.Limit.Capacity < b.Remaining*a.Limit.Capacity
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

// apply sets the fields of d on header, where an upstream may have left its own: those stay if they are stricter, set by set,
// so that a client never reads half of one and half of the other.
func (f fields) apply(header http.Header, d *admit.Decision) {
	if d == nil {
		return
	}
	header.Del(headerDegraded)
	if d.Degraded != "" {
		header.Set(headerDegraded, d.Degraded)
	}
	if len(d.Reports) == 0 {
		return
	}
	one := tightest(d.Reports)
	if f.sets.has(HeadersIETF) {
		f.applyLists(header, d.Reports)
	}
	if f.sets.has(HeadersX) {
		f.applySingle(header, "X-RateLimit-", one, f.epoch)
	}
	if f.sets.has(HeadersDraft06) {
		f.applySingle(header, "RateLimit-", one, false)
	}
}

const headerDegraded = "Annona-Degraded"

// applySingle sets Limit, Remaining and Reset of one report.
func (f fields) applySingle(header http.Header, prefix string, r admit.Report, epoch bool) {
	names := [...]string{prefix + "Limit", prefix + "Remaining", prefix + "Reset"}
	if theirs, ok := single(header, names[1]); ok && theirs < int64(r.Remaining) {
		for _, name := range names {
			if _, ok := single(header, name); !ok {
				header.Del(name) // a value that means nothing is nobody's limit
			}
		}
		return
	}
	reset := seconds(r.Reset)
	if epoch {
		reset += f.now().Unix()
	}
	for i, value := range [...]int64{int64(r.Limit.Capacity), int64(r.Remaining), reset} {
		put(header, names[i], strconv.FormatInt(value, 10))
	}
}

// put replaces a field and spells its name as its specification does, for those who read it with their eyes; to programs all
// spellings are one.
func put(header http.Header, name, value string) {
	header.Del(name)
	header[name] = []string{value}
}

// single reads a field that must be one whole number, not negative.
func single(header http.Header, name string) (int64, bool) {
	values := header.Values(name)
	if len(values) != 1 {
		return 0, false
	}
	n, err := strconv.ParseInt(values[0], 10, 64)
	return n, err == nil && n >= 0
}

const (
	headerLimits   = "RateLimit"
	headerPolicies = "RateLimit-Policy"
)

// applyLists sets the lists of draft-ietf-httpapi-ratelimit-headers-11.
func (f fields) applyLists(header http.Header, reports []admit.Report) {
	reports = reports[:min(len(reports), maxListed)]
	least := reports[0].Remaining
	policies, limits := make(httpsfv.List, 0, len(reports)), make(httpsfv.List, 0, len(reports))
	for _, r := range reports {
		least = min(least, r.Remaining)
		policies = append(policies, item(r.Policy.Name, "q", int64(r.Limit.Capacity), "w", window(r.Limit)))
		limits = append(limits, item(r.Policy.Name, "r", int64(r.Remaining), "t", seconds(r.Reset)))
	}
	if theirs, ok := listed(header); ok && theirs < int64(least) {
		return
	}
	for name, list := range map[string]httpsfv.List{headerPolicies: policies, headerLimits: limits} {
		header.Del(name)
		if text, err := httpsfv.Marshal(list); err == nil { // fails only for a name that is not ASCII
			put(header, name, text)
		}
	}
}

func item(name, first string, a int64, second string, b int64) httpsfv.Item {
	it := httpsfv.NewItem(name)
	it.Params.Add(first, a)
	it.Params.Add(second, b)
	return it
}

// listed returns the smallest r of an upstream's RateLimit list; false where it has none or one that means nothing.
func listed(header http.Header) (least int64, ok bool) {
	list, err := httpsfv.UnmarshalList(header.Values(headerLimits))
	if err != nil || len(list) == 0 {
		return 0, false
	}
	least = math.MaxInt64
	for _, member := range list {
		it, isItem := member.(httpsfv.Item)
		if !isItem {
			return 0, false
		}
		value, _ := it.Params.Get("r")
		r, isInt := value.(int64)
		if !isInt || r < 0 {
			return 0, false
		}
		if t, has := it.Params.Get("t"); has {
			if reset, isInt := t.(int64); !isInt || reset < 0 {
				return 0, false
			}
		}
		least = min(least, r)
	}
	return least, true
}
