package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// openapi.json says what the Go types say.
func TestOpenAPIDescribesTheTypes(t *testing.T) {
	var doc struct {
		Paths map[string]map[string]struct {
			Responses map[string]any `json:"responses"`
		} `json:"paths"`
		Components struct {
			Schemas map[string]struct {
				Properties           map[string]map[string]any `json:"properties"`
				Required             []string                  `json:"required"`
				AdditionalProperties *bool                     `json:"additionalProperties"` //nolint:tagliatelle // OpenAPI's
			} `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(openAPI, &doc); err != nil {
		t.Fatal(err)
	}
	types := map[string]any{
		"CheckRequest": CheckRequest{}, "CheckIdentity": CheckIdentity{}, "CheckedCall": CheckedCall{}, "CheckAnswer": CheckAnswer{},
		"CheckDecision": CheckDecision{}, "UsageRequest": UsageRequest{}, "UsageAnswer": UsageAnswer{}, "Problem": problem{},
		"BlockRequest": BlockRequest{}, "BlockAnswer": BlockAnswer{}, "BlocksAnswer": BlocksAnswer{}, "BanAnswer": BanAnswer{},
		"BansAnswer": BansAnswer{}, "CandidateAnswer": CandidateAnswer{}, "CandidatesAnswer": CandidatesAnswer{}, "ExampleAnswer": ExampleAnswer{},
	}
	if described := slices.Sorted(maps.Keys(doc.Components.Schemas)); !slices.Equal(described, slices.Sorted(maps.Keys(types))) {
		t.Errorf("schemas %v, want those of the types", described)
	}
	for name, value := range types {
		schema := doc.Components.Schemas[name]
		fields := reflect.TypeOf(value)
		var names []string
		for field := range fields.Fields() {
			json, more, _ := strings.Cut(field.Tag.Get("json"), ",")
			names = append(names, json)
			if got, want := jsonType(schema.Properties[json]), typeOf(field.Type, strings.Contains(more, "omitempty")); got != want {
				t.Errorf("%s.%s is %q in the document and %q in Go", name, json, got, want)
			}
			answer := strings.HasSuffix(name, "Answer") || strings.HasSuffix(name, "Decision") || name == "Problem"
			if answer && slices.Contains(schema.Required, json) == strings.Contains(more, "omitempty") {
				t.Errorf("%s.%s: required and omitempty disagree", name, json)
			}
		}
		slices.Sort(names)
		if described := slices.Sorted(maps.Keys(schema.Properties)); !slices.Equal(described, names) {
			t.Errorf("%s has %v in the document and %v in Go", name, described, names)
		}
		if input := strings.HasPrefix(name, "Check") && !strings.HasSuffix(name, "Answer") && name != "CheckDecision" || strings.HasSuffix(name, "Request"); input != (schema.AdditionalProperties != nil) {
			t.Errorf("%s: unknown fields of bodies are refused, and only of those", name)
		}
	}
	for _, path := range []string{"/v1/check", "/v1/usage"} {
		want := []string{"200", "400", "401", "404", "405", "413", "429", "503"}
		if got := slices.Sorted(maps.Keys(doc.Paths[path]["post"].Responses)); !slices.Equal(got, want) {
			t.Errorf("%s answers %v in the document, want %v", path, got, want)
		}
	}
	g := checkGateway(t)
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+g.AdminAddr().String()+"/v1/openapi.json", nil)
	if a := g.do(t, req); a.StatusCode != http.StatusOK || !bytes.Equal(a.body, openAPI) {
		t.Errorf("GET /v1/openapi.json: %d", a.StatusCode)
	}
}

// jsonType is a schema's type in one word.
func jsonType(schema map[string]any) string {
	if ref, ok := schema["$ref"].(string); ok {
		return ref[strings.LastIndex(ref, "/")+1:]
	}
	if items, ok := schema["items"].(map[string]any); ok {
		return "array of " + jsonType(items)
	}
	text := fmt.Sprint(schema["type"])
	if format, ok := schema["format"]; ok {
		text += " " + fmt.Sprint(format)
	}
	return text
}

// typeOf is a Go type in the same words.
func typeOf(t reflect.Type, optional bool) string {
	switch {
	case t == reflect.TypeFor[*time.Time]():
		return "[string null] date-time"
	case t == reflect.TypeFor[time.Time]():
		return "string date-time"
	case t.Kind() == reflect.Pointer && !optional:
		return "[integer null]"
	case t.Kind() == reflect.Slice:
		return "array of " + typeOf(t.Elem(), false)
	case t.Kind() == reflect.Struct:
		return t.Name()
	case t.Kind() == reflect.Map:
		return "object"
	case t.Kind() == reflect.Bool:
		return "boolean"
	case t.Kind() == reflect.String:
		return "string"
	}
	return "integer"
}
