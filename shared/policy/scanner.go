package policy

import "github.com/goccy/go-yaml/token"

// The parser's time and stack grow with the square, or the depth, of some shapes that no policy document has. A scanner refuses
// them before the parser runs, and what would make a document mean more than it says: anchors, aliases, merges, tags.
const (
	// maxTokens is twice what MaxPolicies policies with every field need.
	maxTokens = 200_000
	// maxBrackets bounds the parser's recursion, in which each open bracket is several calls.
	maxBrackets = 16
	// maxSameLevel bounds the names of one mapping: the parser reads each in the call of the one before.
	maxSameLevel = 256
	// maxEmpties bounds values left out: for each the parser moves all tokens behind it.
	maxEmpties = 100
)

// scanner walks over a document's tokens.
type scanner struct {
	last, beforeLast *token.Token // comments left out

	open    []token.Type // brackets
	colons  int          // names on this line, outside brackets
	dashes  int          // list items begun on this line
	empties int
	headers int  // `---` so far
	content bool // something other than `---` was there

	columns []int // of the names that enclose this token, outermost first
	counts  []int // how many names stand there
}

func scan(tokens token.Tokens) (place, *fault) {
	if len(tokens) > maxTokens {
		return placeOf(tokens[maxTokens]), faultf("say more with fewer policies, by tiers and paths", "the document has more than %d parts", maxTokens)
	}
	var s scanner
	for _, t := range tokens {
		if t.Type == token.CommentType || t.Position == nil {
			continue
		}
		if f := s.next(t); f != nil {
			return placeOf(t), f
		}
		s.last, s.beforeLast = t, s.last
	}
	return place{}, nil
}

func (s *scanner) next(t *token.Token) *fault {
	if s.last == nil || t.Position.Line != s.last.Position.Line {
		s.colons, s.dashes = 0, 0
		s.leave(t.Position.Column)
	}
	if f := s.foreign(t); f != nil {
		return f
	}
	if s.empty(t) {
		if s.empties++; s.empties > maxEmpties {
			return faultf("give values, or remove what has none", "more than %d values are left out", maxEmpties)
		}
	}
	switch t.Type {
	case token.SequenceStartType, token.MappingStartType:
		if s.open = append(s.open, t.Type); len(s.open) > maxBrackets {
			return faultf("no field of a policy nests that deep: close a bracket", "more than %d brackets are open", maxBrackets)
		}
	case token.SequenceEndType, token.MappingEndType:
		s.open = s.open[:max(0, len(s.open)-1)]
	case token.SequenceEntryType:
		if s.dashes++; s.dashes > 1 {
			return faultf("write one `- ` a line", "a list stands directly in a list")
		}
	case token.MappingValueType:
		return s.colon()
	default:
	}
	return nil
}

// foreign refuses the parts of YAML that the policy document does without.
func (s *scanner) foreign(t *token.Token) *fault {
	switch t.Type {
	case token.AnchorType, token.AliasType, token.MergeKeyType:
		return faultf("write the value out; text that must start with & or * goes in quotes",
			"anchors, aliases and merges are not part of the policy document")
	case token.TagType:
		return faultf("remove the tag; text that must start with ! goes in quotes", "tags are not part of the policy document")
	case token.DirectiveType:
		return faultf("remove the line; text that must start with % goes in quotes", "directives are not part of the policy document")
	case token.MappingKeyType:
		return faultf("write `name: value`; text that must start with ? goes in quotes", "a name is announced by `?`")
	case token.DocumentHeaderType:
		if s.headers++; s.headers > 1 || s.content {
			return faultf("keep one document a file", "a second document begins")
		}
	default:
		s.content = true
	}
	return nil
}

// empty tells whether t shows that the value before it was left out.
func (s *scanner) empty(t *token.Token) bool {
	if s.last == nil || s.beforeLast == nil {
		return false
	}
	ends := t.Type == token.CollectEntryType || t.Type == token.MappingEndType || t.Type == token.SequenceEndType
	below := t.Position.Line != s.last.Position.Line
	switch s.last.Type {
	case token.SequenceEntryType:
		return ends || (below && t.Position.Column <= s.last.Position.Column)
	case token.MappingValueType:
		name := s.beforeLast.Position.Column
		return ends || (below && (t.Position.Column < name || (t.Position.Column == name && t.Type != token.SequenceEntryType)))
	default: // in {a, b: c} the value of a is left out
		begins := s.beforeLast.Type == token.CollectEntryType || s.beforeLast.Type == token.MappingStartType
		return ends && begins && len(s.open) > 0 && s.open[len(s.open)-1] == token.MappingStartType
	}
}

// colon counts the name that ends here.
func (s *scanner) colon() *fault {
	if len(s.open) == 0 {
		if s.colons++; s.colons > 1 {
			return faultf("put the value in quotes or the second name on a line of its own", "a second `: ` stands on this line")
		}
	}
	if s.last == nil {
		return nil
	}
	column := s.last.Position.Column
	s.leave(column)
	top := len(s.columns) - 1
	if top < 0 || s.columns[top] != column {
		s.columns, s.counts = append(s.columns, column), append(s.counts, 1)
		return nil
	}
	if s.counts[top]++; s.counts[top] > maxSameLevel {
		return faultf("no mapping of a policy needs that many: check the indentation",
			"more than %d names follow each other at one indentation", maxSameLevel)
	}
	return nil
}

// leave forgets the names to the right of column: a token there has ended their mappings.
func (s *scanner) leave(column int) {
	for top := len(s.columns) - 1; top >= 0 && s.columns[top] > column; top-- {
		s.columns, s.counts = s.columns[:top], s.counts[:top]
	}
}
