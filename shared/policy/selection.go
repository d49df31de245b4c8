package policy

import (
	"fmt"
	"slices"
	"strings"
)

// Limits of one policy's lists: what an index and a reader can bear.
const (
	maxEntries = 100
	maxParts   = 16
	maxPath    = 1_024
	maxMethod  = 32
)

// matchFields are what a policy can match by.
var matchFields = []string{"hosts", "methods", "paths", "headers", "query", "tiers", "claims", "regions"}

const (
	methodsRemedy = "write a list such as [GET, POST]"
	pathsRemedy   = "write a list such as [\"/v1/*\", \"/health\"]"
)

// match reads which requests a policy is for.
func (r *reader) match(p draft, n *node) {
	if !r.is(n, mapping, "write match: {methods: [GET], paths: [\"/v1/*\"]}") {
		return
	}
	found := r.fields(n, matchFields)
	for _, name := range matchFields {
		field := found[name]
		if field == nil {
			continue
		}
		switch name {
		case "hosts":
			p.Hosts = r.hosts(field)
		case "methods":
			p.Methods = r.checked(field, methodsRemedy, r.method)
		case "paths":
			p.Paths = r.checked(field, pathsRemedy, r.path)
			r.redundant(field, p.Paths, pathCovers)
		case "headers":
			p.Headers = r.attributes(field, r.headerName)
		case "query":
			p.Query = r.attributes(field, r.parameterName)
		case "tiers":
			p.ForTiers = r.checked(field, "write a list such as [free, premium]", func(n *node) { r.token(n, tierLetters) })
		case "claims":
			p.Claims = r.attributes(field, func(n *node, name string) string { r.claimName(n, name); return name })
		case "regions":
			p.Regions = r.checked(field, "write a list such as [eu, us]", func(n *node) { r.token(n, regionLetters) })
		}
	}
}

// hosts reads names of hosts in any case; requests have theirs in lower case when they are compared.
func (r *reader) hosts(n *node) []string {
	hosts := r.checked(n, "write a list such as [api.example.com, \"*.example.org\"]", r.host)
	for i := range hosts {
		hosts[i] = strings.ToLower(hosts[i])
	}
	r.redundant(n, hosts, hostCovers)
	return hosts
}

func (r *reader) host(n *node) {
	const remedy = "write a name such as api.example.com, or *.example.com for all under it"
	name := strings.ToLower(strings.TrimPrefix(n.text, "*."))
	switch {
	case n.text == "*":
		r.refuse(n, faultf("leave hosts out for any host", "the host * is no name"))
	case strings.Contains(name, ":"):
		r.refuse(n, faultf("leave the port out: hosts are matched without it", "the host %s has a port", shown(n.text)))
	case strings.Contains(name, "*"):
		r.refuse(n, faultf(remedy, "in the host %s a * stands elsewhere than before the first dot", shown(n.text)))
	case strings.HasSuffix(name, "."):
		r.refuse(n, faultf("leave the last dot out", "the host %s never matches: hosts are compared without the last dot", shown(n.text)))
	case strings.ContainsFunc(name, func(c rune) bool { return c > 0x7f }):
		r.refuse(n, faultf("write it as browsers send it, xn--…", "the host %s is not ASCII and never matches", shown(n.text)))
	case name == "" || len(name) > maxHost || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789.-_") != "" ||
		strings.HasPrefix(name, ".") || strings.Contains(name, ".."):
		r.refuse(n, faultf(remedy, "%s is no host's name", shown(n.text)))
	}
}

// redundant warns of entries that another one of the list includes.
func (r *reader) redundant(n *node, entries []string, covers func(pattern, other string) bool) {
	for i, one := range entries {
		for j, pattern := range entries {
			if i != j && pattern != one && covers(pattern, one) {
				r.warn(n.items[i], faultf("remove it", "%s is a part of %s, which stands in the same list", shown(one), shown(pattern)))
				break
			}
		}
	}
}

// maxAttributes is how many headers, parameters or claims one policy may ask for.
const maxAttributes = 16

// attributes reads {NAME: VALUE} and {NAME: [VALUE, VALUE]}: all names, each with one of its values. nameOf checks a name and
// returns the form in which it is looked up.
func (r *reader) attributes(n *node, nameOf func(n *node, name string) string) []Attribute {
	remedy := "write " + n.name + ": {NAME: VALUE}, or {NAME: [VALUE, VALUE]} for one of several"
	if !r.is(n, mapping, remedy) {
		return nil
	}
	if len(n.items) > maxAttributes {
		r.refuse(n, faultf("split the policy", "%s has %d names, more than %d", label(n), len(n.items), maxAttributes))
		return nil
	}
	var all []Attribute
	for _, item := range n.items {
		named := *item
		named.at = item.nameAt
		w := Attribute{Name: nameOf(&named, item.name)}
		if slices.ContainsFunc(all, func(other Attribute) bool { return other.Name == w.Name && w.Name != "" }) {
			r.refuseName(item, faultf("write its values as one list", "%s stands twice in %s", shown(w.Name), label(n)))
		}
		w.Values, w.Any = r.values(item, remedy)
		all = append(all, w)
	}
	return all
}

// values reads what one name may be: a value, a list of them, or * for any.
func (r *reader) values(n *node, remedy string) (values []string, anyValue bool) {
	if n.kind == scalar {
		if n.text == "*" {
			return nil, true
		}
		return []string{r.value(n)}, false
	}
	if n.kind == mapping {
		r.is(n, list, remedy)
		return nil, false
	}
	items, ok := r.texts(n, maxEntries, remedy)
	if !ok {
		return nil, false
	}
	if len(items) == 0 {
		r.refuse(n, faultf("write * for any value, or remove it", "%s has no values", label(n)))
	}
	for _, item := range items {
		if item.text == "*" {
			r.refuse(item, faultf("write * alone, without brackets, for any value", "* is any value, and makes the other entries of %s idle", label(n)))
		}
		values = append(values, r.value(item))
	}
	return values, false
}

// claimName tells whether a claim may be called name.
func (r *reader) claimName(n *node, name string) bool {
	f := valueFault(name)
	if f != nil {
		r.refuseName(n, faultf("write a claim's name, such as org", "%s is no claim's name", shown(name)))
	}
	return f == nil
}

// parameterName returns name, which may be anything that a query can hold.
func (r *reader) parameterName(n *node, name string) string {
	if valueFault(name) != nil {
		r.refuse(n, faultf("write a parameter's name, such as plan", "%s is no name of a query parameter", shown(name)))
		return ""
	}
	return name
}

// checked returns a list's texts after each has been looked at.
func (r *reader) checked(n *node, remedy string, check func(*node)) []string {
	items, ok := r.texts(n, maxEntries, remedy)
	if !ok || len(items) == 0 {
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
	items, ok := r.texts(n, maxParts, remedy)
	if !ok {
		return
	}
	if len(items) == 0 {
		r.refuse(n, faultf("write [all] for one bucket that everyone shares", "the key has no parts"))
	}
	for _, item := range items {
		part := r.part(item)
		if part != item.text && p.keyedBy(part) {
			r.refuse(item, faultf("remove one", "%s stands twice in key", shown(part)))
		}
		p.Parts = append(p.Parts, part)
	}
	if len(items) > 1 && p.keyedBy(everyone) {
		r.refuse(n, faultf("write [all], or leave all out", "the key part all is everyone and goes with no other"))
	}
}

// part returns a key part in the form in which it is hashed.
func (r *reader) part(n *node) string {
	kind, name, _ := strings.Cut(n.text, ":")
	switch kind + ":" {
	case headerPart:
		name = r.headerName(n, name)
	case queryPart:
		name = r.parameterName(n, name)
	case claimPart:
		at := *n
		at.nameAt = n.at
		r.claimName(&at, name)
		return n.text
	default:
		return r.word(n, partNames())
	}
	if name != "" {
		r.warn(n, faultf("key by user, api_key or ip beside a limit of this kind",
			"clients choose their %s: one that changes it has a new budget each time", kind+" "+shown(name)))
	}
	return kind + ":" + name
}
