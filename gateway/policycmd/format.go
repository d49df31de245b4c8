package policycmd

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/annona-gateway/annona/shared/policy"
)

// result is what a check found.
type result struct {
	File     string          `json:"file"`
	Good     bool            `json:"good"`
	Policies int             `json:"policies"`
	Problems policy.Problems `json:"problems"`
	// Asked is what the document makes of the request that was asked about.
	Asked *answer `json:"asked,omitempty"`
}

// formats are the ways to write a result.
var formats = map[string]func(result) (string, error){
	"text":   textOf,
	"json":   jsonOf,
	"github": gitHubOf,
}

func textOf(r result) (string, error) {
	var text strings.Builder
	for _, p := range r.Problems {
		fmt.Fprintf(&text, "%s:%d:%d: %s: %s; %s\n", r.File, p.Line, p.Column, p.Severity, p.Message, p.Remedy)
	}
	text.WriteString(r.summary())
	if r.Asked != nil {
		text.WriteString(r.Asked.text())
	}
	return text.String(), nil
}

func jsonOf(r result) (string, error) {
	if r.Problems == nil {
		r.Problems = policy.Problems{} // a list for the reader, not null
	}
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(r); err != nil {
		return "", fmt.Errorf("encode the result: %w", err)
	}
	return text.String(), nil
}

// gitHubOf writes workflow commands, which become annotations on the lines of a change.
func gitHubOf(r result) (string, error) {
	var text strings.Builder
	commands := map[policy.Severity]string{policy.SeverityError: "error", policy.SeverityWarning: "warning", policy.SeverityNote: "notice"}
	for _, p := range r.Problems {
		fmt.Fprintf(&text, "::%s file=%s,line=%d,col=%d::%s\n", commands[p.Severity],
			property.Replace(r.File), p.Line, p.Column, data.Replace(p.Message+"; "+p.Remedy))
	}
	text.WriteString(r.summary())
	if r.Asked != nil {
		text.WriteString(r.Asked.text())
	}
	return text.String(), nil
}

// What workflow commands escape, in their text and in their properties.
var (
	data     = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

// summary is the last line of a good document; one that is refused has said enough.
func (r result) summary() string {
	if !r.Good {
		return ""
	}
	return fmt.Sprintf("%s: good, %s, %s, %s\n", r.File, counted(r.Policies, "policy", "policies"),
		counted(r.Problems.Count(policy.SeverityWarning), "warning", "warnings"), counted(r.Problems.Count(policy.SeverityNote), "note", "notes"))
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
