package gateway

import (
	"math"
	"net/http"
	"strconv"

	"github.com/dunglas/httpsfv"
)

// standing is where a client stands with one limit, as far as header fields tell: reset in seconds from now; -1 is not told.
type standing struct {
	limit, remaining, reset int64
}

// upstreamName is how an upstream's limit is called where it gave no name.
const upstreamName = "upstream"

// prefixes of the sets that have one field for each number.
var prefixes = map[string]string{HeadersX: "X-RateLimit-", HeadersDraft06: "RateLimit-"}

// heard reads what an upstream tells of its own limits, set by set. What means nothing (no number, a negative one, several
// where there can be one) is as good as absent; a set without a remainder says nothing.
func (f fields) heard(header http.Header) map[string]standing {
	told := map[string]standing{}
	for set, prefix := range prefixes {
		s := standing{limit: -1, reset: -1}
		var ok bool
		if s.remaining, ok = number(header, prefix+"Remaining", math.Floor); !ok {
			continue
		}
		if limit, ok := number(header, prefix+"Limit", math.Floor); ok {
			s.limit = limit
		}
		if reset, ok := number(header, prefix+"Reset", math.Ceil); ok {
			s.reset = f.fromNow(reset)
		}
		told[set] = s
	}
	if s, ok := f.listed(header); ok {
		told[HeadersIETF] = s
	}
	return told
}

// strictest is the standing with the least left.
func strictest(told map[string]standing) (least standing, ok bool) {
	for _, set := range []string{HeadersIETF, HeadersX, HeadersDraft06} {
		if s, has := told[set]; has && (!ok || s.remaining < least.remaining) {
			least, ok = s, true
		}
	}
	return least, ok
}

// fromNow reads a reset, of which nobody says whether it is a time or how long it is until then. What would be more than thirty
// years is a Unix time, in milliseconds if it would lie beyond the year 5000.
func (f fields) fromNow(reset int64) int64 {
	if reset > 1e11 {
		reset /= 1000
	}
	if reset > 1e9 {
		reset -= f.now().Unix()
	}
	return max(reset, 0)
}

// number reads a field that has one number, not negative. Older drafts let parameters and further items follow.
func number(header http.Header, name string, round func(float64) float64) (int64, bool) {
	values := header.Values(name)
	if len(values) != 1 {
		return 0, false
	}
	list, err := httpsfv.UnmarshalList(values)
	if err != nil || len(list) == 0 {
		return 0, false
	}
	it, ok := list[0].(httpsfv.Item)
	if !ok {
		return 0, false
	}
	switch n := it.Value.(type) {
	case int64:
		return n, n >= 0
	case float64:
		return int64(round(n)), n >= 0 // at most twelve digits before the point
	}
	return 0, false
}

// listed reads an upstream's RateLimit field: a list, or what drafts before the list had.
func (f fields) listed(header http.Header) (least standing, ok bool) {
	values := header.Values(headerLimits)
	list, err := httpsfv.UnmarshalList(values)
	if err != nil {
		return f.dictionary(values)
	}
	var name string
	for _, member := range list {
		it, of := named(member)
		s := standing{-1, parameter(it, "r"), parameter(it, "t")}
		if _, has := it.Params.Get("t"); of == "" || s.remaining < 0 || (has && s.reset < 0) {
			return standing{}, false
		}
		if !ok || s.remaining < least.remaining {
			least, name, ok = s, of, true
		}
	}
	if policies, err := httpsfv.UnmarshalList(header.Values(headerPolicies)); err == nil && ok {
		for _, member := range policies {
			if it, of := named(member); of == name {
				least.limit = parameter(it, "q")
			}
		}
	}
	return least, ok
}

// named returns a member that is an item with a name; the name is "" for any other.
func named(member httpsfv.Member) (it httpsfv.Item, name string) {
	it, ok := member.(httpsfv.Item)
	if !ok {
		return httpsfv.NewItem(""), ""
	}
	switch value := it.Value.(type) {
	case string:
		return it, value
	case httpsfv.Token:
		return it, string(value)
	}
	return it, ""
}

// dictionary reads the form of drafts 07 to 09: limit=100, remaining=50, reset=30.
func (f fields) dictionary(values []string) (standing, bool) {
	dict, err := httpsfv.UnmarshalDictionary(values)
	if err != nil {
		return standing{}, false
	}
	read := func(key string) int64 {
		member, _ := dict.Get(key)
		it, _ := member.(httpsfv.Item)
		n, isInt := it.Value.(int64)
		if !isInt || n < 0 {
			return -1
		}
		return n
	}
	s := standing{read("limit"), read("remaining"), read("reset")}
	return s, s.remaining >= 0
}

// parameter reads a whole number, -1 if it is none or negative.
func parameter(it httpsfv.Item, key string) int64 {
	value, _ := it.Params.Get(key)
	n, isInt := value.(int64)
	if !isInt || n < 0 {
		return -1
	}
	return n
}

func isList(values []string) bool {
	list, err := httpsfv.UnmarshalList(values)
	return err == nil && len(list) > 0
}

// lists are s as the one member of the two lists.
func (s standing) lists() (policies, limits httpsfv.List) {
	limited := httpsfv.NewItem(upstreamName)
	limited.Params.Add("r", s.remaining)
	if s.reset >= 0 {
		limited.Params.Add("t", s.reset)
	}
	if s.limit >= 0 {
		policy := httpsfv.NewItem(upstreamName)
		policy.Params.Add("q", s.limit)
		policies = httpsfv.List{policy}
	}
	return policies, httpsfv.List{limited}
}

// put writes s as one of the sets with a field for each number.
func (f fields) put(header http.Header, set string, s standing) {
	if s.reset >= 0 && set == HeadersX && f.epoch {
		s.reset += f.now().Unix()
	}
	for name, n := range map[string]int64{"Limit": s.limit, "Remaining": s.remaining, "Reset": s.reset} {
		header.Del(prefixes[set] + name)
		if n >= 0 {
			put(header, prefixes[set]+name, strconv.FormatInt(n, 10))
		}
	}
}

// drop takes an upstream's set out.
func (f fields) drop(header http.Header, set string) {
	for _, name := range fieldNames[set] {
		header.Del(name)
	}
}

// fieldNames are the fields of each set.
var fieldNames = map[string][]string{
	HeadersIETF:    {headerLimits, headerPolicies},
	HeadersX:       {"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"},
	HeadersDraft06: {"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"},
}
