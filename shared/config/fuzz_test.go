package config

import (
	"reflect"
	"testing"
	"time"
)

type fuzzed struct {
	Text  string        `yaml:"text"`
	Wait  time.Duration `yaml:"wait"`
	Share Percent       `yaml:"share"`
	Size  Bytes         `yaml:"size"`
	List  []string      `yaml:"list"`
	Below *struct {
		Whole int               `yaml:"whole"`
		Names map[string]string `yaml:"names"`
	} `yaml:"below"`
	Many []struct {
		On bool `yaml:"on"`
	} `yaml:"many"`
}

// FuzzDecode: no text makes the decoder panic, and a text that it takes means the same the second time.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"", "text: a\nwait: 5s\nshare: 1%\nsize: 1KiB\nlist: [a, b]\nbelow: {whole: 1, names: {a: b}}\nmany:\n- on: true\n",
		"a: &b c\nd: *b", "<<: {}", "? a\n: b", "text: !!str 1", "---\n---", "[", "text: |\n  a\n", "below:\n", "- a", "many: [{}]",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var once, twice fuzzed
		if problems := (&decoder{origin: "f:"}).decode([]byte(text), reflect.ValueOf(&once).Elem()); len(problems) > 0 {
			return
		}
		if problems := (&decoder{origin: "f:"}).decode([]byte(text), reflect.ValueOf(&twice).Elem()); len(problems) > 0 {
			t.Fatalf("%q was fine and is wrong now: %v", text, problems)
		}
		if !reflect.DeepEqual(once, twice) {
			t.Errorf("%q means %+v, then %+v", text, once, twice)
		}
	})
}
