package policy

import (
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

type kind int

const (
	scalar kind = iota
	list
	mapping
	null
)

func (k kind) String() string {
	return [...]string{"a single value", "a list", "a mapping", "nothing"}[k]
}

// node is one value of the document as written, and where it stands. It knows its parent so that a path is made only for
// what is wrong.
type node struct {
	kind   kind
	text   string  // of a scalar
	items  []*node // of a list or a mapping, in order
	parent *node
	name   string // under which a mapping holds it
	index  int    // at which a list holds it
	at     place  // of the value
	nameAt place  // of the name, for a mapping's item
}

type place struct{ line, column int }

func (p place) String() string { return strconv.Itoa(p.line) + ":" + strconv.Itoa(p.column) }

// path writes where n stands: policies[0].rate.
func (n *node) path() string {
	if n.parent == nil {
		return ""
	}
	prefix := n.parent.path()
	switch {
	case n.parent.kind == list:
		return prefix + "[" + strconv.Itoa(n.index) + "]"
	case prefix == "":
		return shown(n.name)
	default:
		return prefix + "." + shown(n.name)
	}
}

// shown writes text from the document so that it stays short and on one line.
func shown(text string) string {
	const most = 64
	if len(text) <= most && strings.IndexFunc(text, unplain) < 0 && text != "" {
		return text
	}
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return strconv.Quote(text)
}

func unplain(r rune) bool {
	return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/%*+", r)
}

// maxDepth is deeper than any valid document and bounds the recursion over an invalid one.
const maxDepth = 32

// tree copies the parser's tree under parent into nodes, nil where it is nested deeper than maxDepth or holds what no policy
// document may (which scan refuses beforehand, with its place).
func tree(from ast.Node, parent *node, depth int) *node {
	n := &node{parent: parent, at: placeOf(from.GetToken())}
	if depth > maxDepth {
		return nil
	}
	switch from := from.(type) {
	case *ast.MappingNode:
		n.kind = mapping
		for _, value := range from.Values {
			child := entry(value, n, depth)
			if child == nil {
				return nil
			}
			n.items = append(n.items, child)
		}
		// The parser takes a block mapping's first colon for its place; its first name is what a reader looks for.
		if !from.IsFlowStyle && len(n.items) > 0 {
			n.at = n.items[0].nameAt
		}
	case *ast.SequenceNode:
		n.kind = list
		for i, value := range from.Values {
			child := tree(value, n, depth+1)
			if child == nil {
				return nil
			}
			child.index = i
			n.items = append(n.items, child)
		}
	case *ast.NullNode:
		n.kind = null
	case *ast.LiteralNode:
		n.text = from.Value.Value
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		n.text = from.GetToken().Value
	default:
		return nil
	}
	return n
}

func entry(from *ast.MappingValueNode, parent *node, depth int) *node {
	child := tree(from.Value, parent, depth+1)
	if child == nil {
		return nil
	}
	name := from.Key.GetToken()
	child.name, child.nameAt = name.Value, placeOf(name)
	if child.kind == null {
		child.at = child.nameAt
	}
	return child
}

func placeOf(t *token.Token) place {
	if t == nil || t.Position == nil {
		return start
	}
	return place{line: t.Position.Line, column: t.Position.Column}
}
