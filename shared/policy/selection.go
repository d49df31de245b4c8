package policy

import (
	"fmt"
	"slices"
	"strings"
)

// Limits of one policy's lists: what an index and a reader can bear.
const (
	maxEntries = 100
	maxPath    = 1_024
	maxMethod  = 32
)

// matchFields are what a policy can match by; laterMatch those that this version only knows.
var (
	matchFields = []string{"hosts", "methods", "paths", "headers", "query", "tiers", "claims", "regions"}
	laterMatch  = []string{"hosts", "headers", "query", "tiers", "claims", "regions"}
)

// match reads which requests a policy is for.
func (r *reader) match(p draft, n *node) {
	if !r.is(n, mapping, "write match: {methods: [GET], paths: [\"/v1/*\"]}") {
		return
	}
	found := r.fields(n, matchFields)
	for _, name := range laterMatch {
		if field := found[name]; field != nil {
			r.unsupported(field)
		}
	}
	if methods := found["methods"]; methods != nil {
		p.Methods = r.checked(methods, "write a list such as [GET, POST]", r.method)
	}
	if paths := found["paths"]; paths != nil {
		p.Paths = r.checked(paths, "write a list such as [\"/v1/*\", \"/health\"]", r.path)
	}
}

// checked returns a list's texts after each has been looked at.
func (r *reader) checked(n *node, remedy string, check func(*node)) []string {
	items, ok := r.texts(n, maxEntries, remedy)
	if !ok {
		return nil
	}
	texts := make([]string, len(items))
	for i, item := range items {
		check(item)
		texts[i] = item.text
	}
	return texts
}

var commonMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"}

func (r *reader) method(n *node) {
	switch upper := strings.ToUpper(n.text); {
	case n.text == "" || len(n.text) > maxMethod || strings.Trim(upper, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "":
		r.refuse(n, faultf("write methods such as GET", "%s is no method", shown(n.text)))
	case n.text != upper:
		r.refuse(n, faultf("write "+upper, "the method %s never matches: methods are upper case", shown(n.text)))
	case !slices.Contains(commonMethods, upper):
		if near := nearest(upper, commonMethods); near != "" {
			r.warn(n, faultf(fmt.Sprintf("did you mean %s?", near), "%s is an unusual method", upper))
		}
	}
}

// path looks at an exact path or "/x/*". A request's path is decoded once, and has no query and no dot segments: what can
// never be equal to one is refused.
func (r *reader) path(n *node) {
	const remedy = "write an exact path such as /health, or /v1/* for /v1 and all under it"
	text := n.text
	plain := strings.TrimSuffix(text, "/*")
	switch {
	case text == "*":
		r.refuse(n, faultf("write /* for every path", "the path * does not begin with a slash"))
	case !strings.HasPrefix(text, "/"):
		r.refuse(n, faultf(remedy, "the path %s does not begin with a slash and never matches", shown(text)))
	case len(text) > maxPath:
		r.refuse(n, faultf(remedy, "the path %s is longer than %d bytes", shown(text), maxPath))
	case strings.Contains(plain, "*"):
		r.refuse(n, faultf(remedy, "in the path %s a * stands elsewhere than at the end after a slash", shown(text)))
	case strings.Contains(text, "//") || strings.Contains(text, "\\"):
		r.refuse(n, faultf("write single slashes", "the path %s never matches: requests' paths have no // and no backslash", shown(text)))
	case strings.ContainsAny(text, "?#"):
		r.refuse(n, faultf("end the path before the ? or #", "the path %s never matches: a path has no query or fragment", shown(text)))
	case strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }):
		r.refuse(n, faultf(remedy, "the path %s holds a control character", shown(text)))
	case slices.ContainsFunc(strings.Split(plain, "/"), func(segment string) bool { return segment == "." || segment == ".." }):
		r.refuse(n, faultf("write the path that is meant without . and ..", "the path %s never matches: requests' paths are normalised", shown(text)))
	case encoded(text):
		r.warn(n, faultf("write the character itself", "the path %s is matched after decoding, so its %% is a percent sign", shown(text)))
	}
}

// encoded tells whether path has something that looks like a percent-encoded byte.
func encoded(path string) bool {
	for _, after := range strings.Split(path, "%")[1:] {
		if len(after) >= 2 && strings.Trim(after[:2], "0123456789abcdefABCDEF") == "" {
			return true
		}
	}
	return false
}

// key reads whose tokens a policy counts.
func (r *reader) key(p draft, n *node) {
	remedy := "write a list of " + orList(partNames()) + ", such as [user]"
	items, ok := r.texts(n, len(partNames()), remedy)
	if !ok {
		return
	}
	if len(items) == 0 {
		r.refuse(n, faultf("write [all] for one bucket that everyone shares", "the key has no parts"))
	}
	for _, item := range items {
		r.part(item)
		p.Parts = append(p.Parts, item.text)
	}
	if len(items) > 1 && p.keyedBy(everyone) {
		r.refuse(n, faultf("write [all], or leave all out", "the key part all is everyone and goes with no other"))
	}
}

func (r *reader) part(n *node) {
	kind, _, dynamic := strings.Cut(n.text, ":")
	if dynamic && slices.Contains([]string{"header", "query", "claim"}, kind) {
		r.refuse(n, faultf("key by "+orList(partNames()), "the key part %s is not supported by this version yet", shown(n.text)))
		return
	}
	r.word(n, partNames(), nil)
}
