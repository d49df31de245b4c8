package policy

import (
	"fmt"
	"slices"
	"strings"
)

// reader turns nodes into values and collects everything that is wrong on the way; it goes on after each problem.
type reader struct {
	problems Problems
	errors   int     // among problems
	drafts   []draft // of the policies so far
}

func (r *reader) report(severity Severity, n *node, f *fault) {
	at := n.at
	if severity == SeverityError {
		r.errors++
	}
	r.problems = append(r.problems, Problem{
		Severity: severity, Line: at.line, Column: at.column, Path: n.path(), Message: f.message, Remedy: f.remedy,
	})
}

func (r *reader) refuse(n *node, f *fault) { r.report(SeverityError, n, f) }
func (r *reader) warn(n *node, f *fault)   { r.report(SeverityWarning, n, f) }

// refuseName reports what is wrong with an item's name rather than its value.
func (r *reader) refuseName(n *node, f *fault) {
	named := *n
	named.at = n.nameAt
	r.refuse(&named, f)
}

// is tells whether n is of the kind that its field takes, and reports it otherwise.
func (r *reader) is(n *node, want kind, remedy string) bool {
	switch n.kind {
	case want:
		return true
	case null:
		r.refuse(n, faultf("give it a value or remove it", "%s has no value", label(n)))
	default:
		r.refuse(n, faultf(remedy, "%s is %s, not %s", label(n), n.kind, want))
	}
	return false
}

// label names n in a message: its field, or its place in a field's list.
func label(n *node) string {
	switch {
	case n.parent == nil:
		return "the document"
	case n.parent.kind == list:
		return fmt.Sprintf("%s[%d]", label(n.parent), n.index)
	default:
		return shown(n.name)
	}
}

// text returns a single value's text.
func (r *reader) text(n *node, remedy string) (string, bool) {
	if !r.is(n, scalar, remedy) {
		return "", false
	}
	return n.text, true
}

// texts returns a list's single values, at most most; ok is false where any was refused.
func (r *reader) texts(n *node, most int, remedy string) (items []*node, ok bool) {
	if !r.is(n, list, remedy) {
		return nil, false
	}
	if len(n.items) > most {
		r.refuse(n, faultf("split the policy", "%s has %d entries, more than %d", label(n), len(n.items), most))
		return nil, false
	}
	ok = true
	seen := make(map[string]bool, len(n.items))
	for _, item := range n.items {
		text, good := r.text(item, remedy)
		if good && seen[text] {
			r.refuse(item, faultf("remove one", "%s stands twice in %s", shown(text), label(n)))
			good = false
		}
		seen[text] = true
		ok = ok && good
	}
	return n.items, ok
}

// fields returns a mapping's items by name. Unknown and repeated names are reported. A misspelt one is then read as what was
// probably meant, so that its value is looked at too and nothing is called missing.
func (r *reader) fields(n *node, known []string) map[string]*node {
	found := make(map[string]*node, len(n.items))
	var unknown []*node
	for _, item := range n.items {
		switch {
		case !slices.Contains(known, item.name):
			unknown = append(unknown, item)
		case found[item.name] != nil:
			r.refuseName(item, faultf("remove one", "%s stands twice (first on line %d)", item.name, found[item.name].nameAt.line))
		default:
			found[item.name] = item
		}
	}
	for _, item := range unknown {
		meant := nearest(item.name, known)
		remedy := "remove it; the fields here are " + strings.Join(known, ", ")
		if meant != "" {
			remedy = fmt.Sprintf("did you mean %s?", meant)
		}
		r.refuseName(item, faultf(remedy, "unknown field %s", shown(item.name)))
		if meant != "" && found[meant] == nil {
			found[meant] = item
		}
	}
	return found
}

// need reports each of names that a mapping lacks.
func (r *reader) need(n *node, found map[string]*node, names []string, remedies map[string]string) {
	for _, name := range names {
		if found[name] == nil {
			missing := &node{parent: n, name: name, at: n.at}
			r.refuse(missing, faultf(remedies[name], "%s is missing", name))
		}
	}
}

// word returns a value that must be one of words, or "" and a report.
func (r *reader) word(n *node, words []string) string {
	remedy := "write " + orList(words)
	text, ok := r.text(n, remedy)
	switch {
	case !ok:
		return ""
	case slices.Contains(words, text):
		return text
	default:
		if near := nearest(text, words); near != "" {
			remedy = fmt.Sprintf("did you mean %s?", near)
		}
		r.refuse(n, faultf(remedy, "%s cannot be %s", label(n), shown(text)))
	}
	return ""
}

// orList writes words as "a, b or c".
func orList(words []string) string { return listed(words, " or ") }

// andList writes words as "a, b and c".
func andList(words []string) string { return listed(words, " and ") }

func listed(words []string, last string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	end := len(words) - 1
	return strings.Join(words[:end], ", ") + last + words[end]
}

// nearest returns the known word that name is most likely a misspelling of, or "".
func nearest(name string, known []string) string {
	const longest = 64
	if len(name) > longest {
		return ""
	}
	best, least := "", max(1, len(name)/3)+1
	for _, word := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(word)); d < least {
			best, least = word, d
		}
	}
	return best
}

// distance is how many letters must be inserted, removed, replaced or swapped with a neighbour to make a of b (optimal string
// alignment; Damerau 1964).
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			change := 1
			if a[i] == b[j] {
				change = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+change)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
