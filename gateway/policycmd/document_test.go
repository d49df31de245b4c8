package policycmd

import (
	"os"
	"strings"
	"testing"
)

// TestTheDocumentsExamplesAreGood: every example in DOCUMENT.md passes `annona policy check --strict`, and the cases there pass
// with the example before them.
func TestTheDocumentsExamplesAreGood(t *testing.T) {
	page, err := os.ReadFile("../../shared/policy/DOCUMENT.md")
	if err != nil {
		t.Fatal(err)
	}
	documents, cases, last := 0, 0, ""
	for i, block := range strings.Split(string(page), "```") {
		kind, text, _ := strings.Cut(block, "\n")
		switch {
		case i%2 == 0: // between two examples
		case kind == "yaml cases":
			cases++
			if out, code := try(t, last, text); code != 0 {
				t.Errorf("annona policy test prints\n%sof\n%s", out, text)
			}
		case kind == "yaml":
			documents++
			last = text
			if out, code, err := run(t, text, "check", "--strict", "FILE"); code != 0 || err != nil {
				t.Errorf("annona policy check --strict prints\n%s%v of\n%s", out, err, text)
			}
		default:
			t.Errorf("an example of %q, which nobody tries", kind)
		}
	}
	if documents < 4 || cases < 1 {
		t.Errorf("%d documents and %d files of cases were found: the page is read wrongly", documents, cases)
	}
}

// TestReadmesExampleOfEveryLimitIsGood: what a newcomer is told to put into policies.yaml is accepted.
func TestReadmesExampleOfEveryLimitIsGood(t *testing.T) {
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for block := range strings.SplitSeq(string(page), "```") {
		text, is := strings.CutPrefix(block, "yaml\nschema: 1\n")
		if !is {
			continue
		}
		found = true
		if out, code, err := run(t, "schema: 1\n"+text, "check", "FILE"); code != 0 || err != nil {
			t.Errorf("annona policy check prints\n%s%v", out, err)
		}
	}
	if !found {
		t.Error("the README has no example of a policy document")
	}
}
