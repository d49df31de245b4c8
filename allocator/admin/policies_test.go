package admin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/annona-gateway/annona/allocator/admin"
)

const yamlType = "application/yaml"

func TestPoliciesAreReadAsWritten(t *testing.T) {
	b := newBench(t)
	w := b.call(viewerToken, "GET", "/admin/v1/policies", "")
	if w.Code != http.StatusOK || w.Body.String() != document || w.Header().Get("ETag") != `"7"` || w.Header().Get("Content-Type") != yamlType {
		t.Errorf("GET: %d %v\n%s", w.Code, w.Header(), w.Body)
	}
	for accept, wantJSON := range map[string]bool{
		"": false, "*/*": false, "application/yaml": false, "application/json": true, "application/json; q=0.9, */*;q=0.1": true,
		"application/json;q=0.1, application/yaml": false, "application/json;q=0": false, "APPLICATION/JSON": true,
	} {
		w := b.call(viewerToken, "GET", "/admin/v1/policies", "", "Accept", accept)
		if isJSON := json.Valid(w.Body.Bytes()) && w.Header().Get("Content-Type") == "application/json"; isJSON != wantJSON {
			t.Errorf("Accept %q: JSON is %v, want %v", accept, isJSON, wantJSON)
		}
		if w.Header().Get("ETag") != `"7"` {
			t.Errorf("Accept %q: ETag %q", accept, w.Header().Get("ETag"))
		}
	}
	b.docs.kept = nil
	wantProblem(t, b.call(viewerToken, "GET", "/admin/v1/policies", ""), http.StatusNotFound)
	b.docs.failGet = errBroken
	if p := wantProblem(t, b.call(viewerToken, "GET", "/admin/v1/policies", ""), http.StatusServiceUnavailable); strings.Contains(p.Detail, "10.1.2.3") {
		t.Errorf("the client reads the cause: %s", p.Detail)
	}
}

// What GET answers as JSON can be PUT back.
func TestPoliciesAsJSONComeBack(t *testing.T) {
	b := newBench(t)
	body := b.call(viewerToken, "GET", "/admin/v1/policies", "", "Accept", "application/json").Body.String()
	w := b.call(operatorToken, "PUT", "/admin/v1/policies", body, "Content-Type", "application/json; charset=utf-8", "If-Match", `"7"`)
	if w.Code != http.StatusOK {
		t.Fatalf("PUT: %d %s", w.Code, w.Body)
	}
}

func TestPutPolicies(t *testing.T) {
	b := newBench(t)
	changed := strings.Replace(document, "burst: 200", "burst: 300", 1)
	w := b.call(operatorToken, "PUT", "/admin/v1/policies", changed, "Content-Type", yamlType, "If-Match", `"7"`)
	if got := decode[admin.PoliciesChanged](t, w); w.Code != http.StatusOK || got.Revision != 10 || got.Warnings == nil || w.Header().Get("ETag") != `"10"` {
		t.Fatalf("PUT: %d %s, ETag %s", w.Code, w.Body, w.Header().Get("ETag"))
	}
	if got := b.call(viewerToken, "GET", "/admin/v1/policies", "").Body.String(); got != changed {
		t.Errorf("stored:\n%s\nwant what was put", got)
	}
	wantProblem(t, b.call(operatorToken, "PUT", "/admin/v1/policies", document, "Content-Type", yamlType, "If-Match", `"7"`), http.StatusPreconditionFailed)
	w = b.call(operatorToken, "PUT", "/admin/v1/policies", document, "Content-Type", "text/yaml", "If-Match", `"1", "10"`)
	if w.Code != http.StatusOK {
		t.Errorf("one of two ETags matches: %d %s", w.Code, w.Body)
	}
}

func TestTheFirstPoliciesNeedIfNoneMatch(t *testing.T) {
	b := newBench(t)
	put := func(header, value string) int {
		return b.call(operatorToken, "PUT", "/admin/v1/policies", document, "Content-Type", yamlType, header, value).Code
	}
	if got := put("If-None-Match", "*"); got != http.StatusPreconditionFailed {
		t.Errorf("If-None-Match: * over a document: %d, want 412", got)
	}
	b.docs.kept = nil
	if got := put("If-Match", "*"); got != http.StatusPreconditionFailed {
		t.Errorf("If-Match: * without a document: %d, want 412", got)
	}
	if got := put("If-None-Match", "*"); got != http.StatusOK {
		t.Errorf("If-None-Match: * without a document: %d, want 200", got)
	}
}

// Bad input of any kind changes nothing.
func TestRefusedPoliciesChangeNothing(t *testing.T) {
	match := []string{"If-Match", `"7"`}
	tooMuch := document + strings.Repeat("# filler\n", admin.MaxDocumentBytes/8)
	for name, r := range map[string]struct {
		path, media, body string
		headers           []string
		status            int
	}{
		"no If-Match":        {"", yamlType, document, nil, 428},
		"stale":              {"", yamlType, document, []string{"If-Match", `"6"`}, 412},
		"weak tag":           {"", yamlType, document, []string{"If-Match", `W/"7"`}, 412},
		"tag without quotes": {"", yamlType, document, []string{"If-Match", `7`}, 412},
		"no content type":    {"", "", document, match, 415},
		"a form":             {"", "application/x-www-form-urlencoded", document, match, 415},
		"bad content type":   {"", "yaml;;", document, match, 415},
		"too large":          {"", yamlType, tooMuch, match, 413},
		"empty":              {"", yamlType, "", match, 422},
		"not YAML":           {"", yamlType, "a: [", match, 422},
		"binary":             {"", yamlType, "\x00\xff\xfe", match, 422},
		"unknown field":      {"", yamlType, document + "nothing: 1\n", match, 422},
		"negative burst":     {"", yamlType, strings.Replace(document, "burst: 200", "burst: -1", 1), match, 422},
		"YAML as JSON":       {"", "application/json", document, match, 422},
		"two values of JSON": {"", "application/json", "{}{}", match, 422},
		"unknown query":      {"?dry_run=1", yamlType, document, match, 400},
		"malformed query":    {"?%zz", yamlType, document, match, 400},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			headers := append([]string{"Content-Type", r.media}, r.headers...)
			p := wantProblem(t, b.call(operatorToken, "PUT", "/admin/v1/policies"+r.path, r.body, headers...), r.status)
			if len(b.docs.kept) != 1 {
				t.Error("the policies changed")
			}
			if r.status != http.StatusUnprocessableEntity {
				return
			}
			if len(p.Errors) == 0 {
				t.Fatal("422 without errors")
			}
			for _, e := range p.Errors {
				if e.Line < 1 || e.Column < 1 || e.Message == "" || e.Remedy == "" {
					t.Errorf("error %+v lacks line, column, message or remedy", e)
				}
			}
		})
	}
}

func TestJSONErrorsHaveTheirPlace(t *testing.T) {
	w := newBench(t).call(operatorToken, "POST", "/admin/v1/policies/validate", "{\n \"schema\": 1,\n  oops}", "Content-Type", "application/json")
	p := wantProblem(t, w, http.StatusUnprocessableEntity)
	if len(p.Errors) != 1 || p.Errors[0].Line != 3 || p.Errors[0].Column != 3 {
		t.Errorf("errors %+v, want one at 3:3", p.Errors)
	}
}

func TestAStoreThatFailsBothWays(t *testing.T) {
	put := func(b *bench) admin.Problem {
		w := b.call(operatorToken, "PUT", "/admin/v1/policies", document, "Content-Type", yamlType, "If-Match", "*")
		return wantProblem(t, w, w.Code)
	}
	b := newBench(t)
	b.docs.race = true
	if p := put(b); p.Status != http.StatusPreconditionFailed {
		t.Errorf("somebody else was first: %+v, want 412", p)
	}
	for name, err := range map[string]error{"timeout": context.DeadlineExceeded, "out": errBroken} {
		b := newBench(t)
		b.docs.failPut = fmt.Errorf("store document: %w", err)
		if p := put(b); p.Status != http.StatusServiceUnavailable || !strings.Contains(p.Detail, "read the document again") {
			t.Errorf("%s: %+v, want 503 that says the outcome is unknown", name, p)
		}
	}
	b = newBench(t)
	b.docs.failGet = errBroken
	if p := put(b); p.Status != http.StatusServiceUnavailable || !strings.Contains(p.Detail, "does not answer") {
		t.Errorf("out before the change: %+v, want 503 that says so", p)
	}
	b.docs.failGet = admin.ErrNotReady
	if p := put(b); p.Status != http.StatusServiceUnavailable || !strings.Contains(p.Detail, "readyz") {
		t.Errorf("not ready: %+v, want 503 that says so", p)
	}
}

func TestValidateChangesNothing(t *testing.T) {
	b := newBench(t)
	w := b.call(viewerToken, "POST", "/admin/v1/policies/validate", document, "Content-Type", yamlType)
	if got := decode[admin.PoliciesValid](t, w); w.Code != http.StatusOK || got.Warnings == nil {
		t.Errorf("validate: %d %s", w.Code, w.Body)
	}
	wantProblem(t, b.call(viewerToken, "POST", "/admin/v1/policies/validate", "schema: 9", "Content-Type", yamlType), http.StatusUnprocessableEntity)
	if len(b.docs.kept) != 1 {
		t.Error("validation changed the policies")
	}
}

func TestHistoryIsNewestFirst(t *testing.T) {
	b := newBench(t)
	b.call(operatorToken, "PUT", "/admin/v1/policies", document+"# more\n", "Content-Type", yamlType, "If-Match", `"7"`)
	list := decode[admin.List[admin.Revision]](t, b.call(viewerToken, "GET", "/admin/v1/policies/history", ""))
	if len(list.Items) != 2 || list.Items[0].Revision != 10 || list.Items[1].Revision != 7 || list.Items[1].Bytes != len(document) {
		t.Errorf("history %+v, want revisions 10 and 7", list.Items)
	}
	if got := list.Items[1].CreatedAt.Format("2006-01-02T15:04:05Z07:00"); got != "2020-09-13T12:26:40Z" {
		t.Errorf("created_at %s, want UTC", got)
	}
}
