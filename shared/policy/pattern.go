package policy

import (
	"net"
	"net/url"
	"slices"
	"strings"
)

// Attribute is a header, a query parameter or a claim that a request must have, with one of Values.
type Attribute struct {
	Name   string // of a header: canonical
	Values []string
	Any    bool // any value will do
}

// hasOne tells whether one of a request's values is wanted. One that is empty is as good as none.
func (w *Attribute) hasOne(values []string) bool {
	return slices.ContainsFunc(values, w.has)
}

func (w *Attribute) has(value string) bool {
	return value != "" && (w.Any || slices.Contains(w.Values, value))
}

// asked is a request while policies are looked up for it.
type asked struct {
	*Request

	query  url.Values
	parsed bool
}

// parameters returns the query's, read once. Parts that cannot be read count for nothing: the proxy takes them away, so an
// upstream does not see them either.
func (a *asked) parameters() url.Values {
	if !a.parsed {
		a.query, _ = url.ParseQuery(a.Query) // what could be read is there
		a.parsed = true
	}
	return a.query
}

// has tells whether the request has all headers, parameters and claims that p asks for.
func (a *asked) has(p *Policy) bool {
	for i := range p.Headers {
		if !p.Headers[i].hasOne(a.Header[p.Headers[i].Name]) {
			return false
		}
	}
	for i := range p.Query {
		if !p.Query[i].hasOne(a.parameters()[p.Query[i].Name]) {
			return false
		}
	}
	for i := range p.Claims {
		if !p.Claims[i].has(a.Claims[p.Claims[i].Name]) {
			return false
		}
	}
	return true
}

// maxHost is the longest name of a host in bytes.
const maxHost = 253

// hostname is host without its port and its last dot, in lower case.
func hostname(host string) string {
	if strings.Contains(host, ":") { // an error costs an allocation
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// pathMatches tells whether an exact path, or "/x/*", matches path.
func pathMatches(pattern, path string) bool {
	prefix, under := strings.CutSuffix(pattern, "/*")
	if !under {
		return path == pattern
	}
	rest, ok := strings.CutPrefix(path, prefix)
	return ok && strings.HasPrefix(path, "/") && (rest == "" || rest[0] == '/')
}

// pathCovers tells whether pattern matches whatever other matches.
func pathCovers(pattern, other string) bool {
	prefix, under := strings.CutSuffix(pattern, "/*")
	start, all := strings.CutSuffix(other, "/*")
	if !under || !all {
		return pathMatches(pattern, other) && (under || !all)
	}
	return start == prefix || strings.HasPrefix(start, prefix+"/")
}

// pathsMeet tells whether some path matches both.
func pathsMeet(a, b string) bool { return pathCovers(a, b) || pathCovers(b, a) }

// hostCovers tells whether pattern matches whatever other matches.
func hostCovers(pattern, other string) bool {
	suffix, under := strings.CutPrefix(pattern, "*")
	return pattern == other || (under && strings.HasSuffix(strings.TrimPrefix(other, "*"), suffix) && len(other) > len(suffix))
}

func equal(a, b string) bool { return a == b }

// covered tells whether each of a stands under one of b; an empty list is any.
func covered(a, b []string, covers func(pattern, other string) bool) bool {
	if len(b) == 0 {
		return true
	}
	return len(a) > 0 && !slices.ContainsFunc(a, func(one string) bool {
		return !slices.ContainsFunc(b, func(pattern string) bool { return covers(pattern, one) })
	})
}

// apart tells whether no value can be in both lists; an empty list is any.
func apart(a, b []string, meet func(a, b string) bool) bool {
	return len(a) > 0 && len(b) > 0 && !slices.ContainsFunc(a, func(one string) bool {
		return slices.ContainsFunc(b, func(other string) bool { return meet(one, other) })
	})
}
