package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
)

// MaxSource is the largest policy document in bytes: it must fit one NATS message of the default size (1 MiB), with room for
// what carries it.
const MaxSource = 768 << 10

// start is the place of what is wrong with the whole document.
var start = place{line: 1, column: 1}

const yamlRemedy = "write it as in the example of the policy document: plain names, values, lists and mappings"

// readSource reads source as YAML. What it returns instead of a tree says what is wrong with the text as text.
func readSource(source []byte) (root *node, at place, f *fault) {
	// The parser is a library that reads what anyone sends; a panic of it is a document that it cannot read.
	defer func() {
		if recover() != nil {
			root, at, f = nil, start, faultf(yamlRemedy, "the document is not YAML that can be read")
		}
	}()
	if f := checkText(source); f != nil {
		return nil, start, f
	}
	text := plainText(source)
	if at, f := checkTabs(text); f != nil {
		return nil, at, f
	}
	tokens := lexer.Tokenize(string(text))
	if at, f := scan(tokens); f != nil {
		return nil, at, f
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		at, f := syntaxFault(err)
		return nil, at, f
	}
	switch {
	case len(file.Docs) == 0 || file.Docs[0].Body == nil:
		return nil, start, faultf("start with `schema: 1` and `policies:`", "the document is empty")
	case len(file.Docs) > 1:
		return nil, start, faultf("keep one document a file", "there is more than one document")
	}
	if root = tree(file.Docs[0].Body, nil, 0); root == nil {
		return nil, start, faultf(yamlRemedy, "the document is nested too deep or holds what no field takes")
	}
	return root, start, nil
}

func checkText(source []byte) *fault {
	switch {
	case len(source) > MaxSource:
		return faultf("say more with fewer policies, by tiers and paths", "the document has more than %d bytes", MaxSource)
	case !utf8.Valid(source):
		return faultf("save the file as UTF-8", "the document is not UTF-8 text")
	case bytes.IndexByte(source, 0) >= 0:
		return faultf("save the file as UTF-8 text", "the document holds a zero byte")
	}
	return nil
}

// maxTabbed bounds lines with tabs: for each tab in quotes the lexer looks at all the rest of its line.
const maxTabbed = 4_096

func checkTabs(text []byte) (place, *fault) {
	number := 0
	for line := range bytes.Lines(text) {
		number++
		if tab := bytes.IndexByte(line, '\t'); tab >= 0 && len(line) > maxTabbed {
			return place{line: number, column: tab + 1}, faultf("write spaces for tabs, or \\t in quotes",
				"a line with a tab is longer than %d bytes", maxTabbed)
		}
	}
	return place{}, nil
}

// plainText takes away what JSON and editors may write and the YAML parser does not read: a byte order mark, and tabs between
// JSON's values (in valid JSON no string holds a raw tab, so every tab is space).
func plainText(source []byte) []byte {
	source = bytes.TrimPrefix(source, []byte("\ufeff"))
	if bytes.IndexByte(source, '\t') >= 0 && json.Valid(source) {
		return bytes.ReplaceAll(source, []byte("\t"), []byte(" "))
	}
	return source
}

func syntaxFault(err error) (place, *fault) {
	if syntax, ok := errors.AsType[*yaml.SyntaxError](err); ok {
		return placeOf(syntax.Token), faultf("check indentation, quotes and brackets here and on the line before",
			"not valid YAML: %s", oneLine(syntax.Message))
	}
	return start, faultf(yamlRemedy, "not valid YAML")
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
