package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/labstack/echo/v4"

	"github.com/annona-gateway/annona/shared/bus"
	"github.com/annona-gateway/annona/shared/policy"
)

// PoliciesChanged answers a PUT.
type PoliciesChanged struct {
	Revision uint64          `json:"revision"`
	Warnings policy.Problems `json:"warnings"`
}

// PoliciesValid answers a validation without errors.
type PoliciesValid struct {
	Warnings policy.Problems `json:"warnings"`
}

// Revision is one line of the history.
type Revision struct {
	Revision  uint64    `json:"revision"`
	CreatedAt time.Time `json:"created_at"`
	Bytes     int       `json:"bytes"`
}

// List is the form of every list: Next is the cursor of the next page, "" on the last.
type List[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next"`
}

func (s *Server) getPolicies(c echo.Context, from *sources) error {
	if err := onlyQuery(c); err != nil {
		return err
	}
	doc, err := from.documents.Get(c.Request().Context(), bus.PolicyDocument)
	if err != nil {
		return because(errStoreOut, err)
	}
	header := c.Response().Header()
	header.Set("ETag", etag(doc.Revision))
	header.Set("Vary", "Accept")
	if !prefersJSON(c.Request().Header.Get("Accept")) {
		return replyBlob(c, mediaYAML, doc.Data)
	}
	body, err := asJSON(doc.Data)
	if err != nil {
		return fmt.Errorf("policies as JSON: %w", err)
	}
	return replyBlob(c, mediaJSON, body)
}

// putPolicies replaces the document: the checks come first, the store's compare-and-set last, so a refused one changed nothing.
func (s *Server) putPolicies(c echo.Context, from *sources) error {
	ctx := c.Request().Context()
	if err := onlyQuery(c); err != nil {
		return err
	}
	source, err := readDocument(c)
	if err != nil {
		return err
	}
	replaced, err := precondition(c, from.documents)
	if err != nil {
		return err
	}
	warnings, err := check(c, source)
	if err != nil {
		return err
	}
	revision, err := from.documents.Put(ctx, bus.PolicyDocument, replaced, source)
	if err != nil {
		s.cfg.Log.WarnContext(ctx, "policies not changed", "by", holder(c).Name, "expected", replaced, "error", err.Error())
		return because(errOutcomeUnknown, err)
	}
	s.cfg.Log.InfoContext(ctx, "policies changed", "by", holder(c).Name, "revision", revision, "replaced", replaced, "bytes", len(source))
	c.Response().Header().Set("ETag", etag(revision))
	return reply(c, PoliciesChanged{Revision: revision, Warnings: warnings})
}

// precondition returns which revision a PUT may replace: that of If-Match, or, for the very first document, none (0) with
// If-None-Match: *.
func precondition(c echo.Context, documents Documents) (uint64, error) {
	match := strings.Join(c.Request().Header.Values("If-Match"), ",")
	first := strings.TrimSpace(c.Request().Header.Get("If-None-Match")) == "*"
	if match == "" && !first {
		return 0, errNoPrecondition
	}
	current, err := documents.Get(c.Request().Context(), bus.PolicyDocument)
	missing := errors.Is(err, bus.ErrNoDocument)
	switch {
	case err != nil && !missing:
		return 0, because(errStoreOut, err)
	case match != "" && (missing || !matches(match, current.Revision)), first && !missing:
		return 0, bus.ErrStale
	}
	return current.Revision, nil
}

func (s *Server) validatePolicies(c echo.Context) error {
	if err := onlyQuery(c); err != nil {
		return err
	}
	source, err := readDocument(c)
	if err != nil {
		return err
	}
	warnings, err := check(c, source)
	if err != nil {
		return err
	}
	return reply(c, PoliciesValid{Warnings: warnings})
}

func (s *Server) policiesHistory(c echo.Context, from *sources) error {
	if err := onlyQuery(c); err != nil {
		return err
	}
	docs, err := from.documents.History(c.Request().Context(), bus.PolicyDocument)
	if err != nil {
		return because(errStoreOut, err)
	}
	list := List[Revision]{Items: make([]Revision, 0, len(docs))}
	for _, doc := range docs {
		list.Items = append(list.Items, Revision{Revision: doc.Revision, CreatedAt: *instant(doc.Created), Bytes: len(doc.Data)})
	}
	return reply(c, list)
}

// readDocument reads a policy document of a known type, at most MaxDocumentBytes.
func readDocument(c echo.Context) ([]byte, error) {
	if media := mediaType(c.Request()); media != mediaJSON && !slices.Contains(yamlTypes(), media) {
		return nil, unsupported(mediaYAML, mediaJSON)
	}
	source, err := readAll(c, MaxDocumentBytes)
	if errors.Is(err, errTooLarge) {
		return nil, &refusal{kind: errTooLarge, detail: fmt.Sprintf("a policy document has at most %d bytes", MaxDocumentBytes)}
	}
	return source, err
}

// check parses a document and returns its warnings, or an error that holds every problem.
func check(c echo.Context, source []byte) (policy.Problems, error) {
	if mediaType(c.Request()) == mediaJSON {
		if problem, ok := jsonProblem(source); !ok {
			return nil, &invalidError{problems: policy.Problems{problem}}
		}
	}
	doc, problems := policy.Parse(source)
	if doc == nil {
		return nil, &invalidError{problems: problems}
	}
	warnings := policy.Problems{}
	for _, p := range problems {
		if p.Severity == policy.SeverityWarning {
			warnings = append(warnings, p)
		}
	}
	return warnings, nil
}

// jsonProblem says where source, sent as JSON, is none. (YAML's parser would take it.)
func jsonProblem(source []byte) (policy.Problem, bool) {
	var value json.RawMessage
	err := json.Unmarshal(source, &value)
	if err == nil {
		return policy.Problem{}, true
	}
	at := len(source)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		at = int(min(max(syntax.Offset-1, 0), int64(len(source))))
	}
	before := source[:at]
	return policy.Problem{
		Severity: policy.SeverityError,
		Line:     1 + bytes.Count(before, []byte("\n")),
		Column:   at - bytes.LastIndexByte(before, '\n'),
		Message:  "this is not JSON",
		Remedy:   "mend it, or send YAML as Content-Type: " + mediaYAML,
	}, false
}

// asJSON rewrites a stored document, which is YAML, as JSON. Its comments are lost.
func asJSON(source []byte) ([]byte, error) {
	var value any
	if err := yaml.Unmarshal(source, &value); err != nil {
		return nil, errors.New("the stored document is not YAML")
	}
	body, err := json.Marshal(value)
	if err != nil {
		return nil, errors.New("the stored document has values that JSON has not")
	}
	return body, nil
}

func etag(revision uint64) string { return `"` + strconv.FormatUint(revision, 10) + `"` }

// matches compares an If-Match header strongly, as RFC 9110 wants it: a weak tag matches nothing.
func matches(header string, revision uint64) bool {
	for tag := range strings.SplitSeq(header, ",") {
		if tag = strings.TrimSpace(tag); tag == "*" || tag == etag(revision) {
			return true
		}
	}
	return false
}

// prefersJSON reads an Accept header: JSON must be named, and not rated below YAML.
func prefersJSON(accept string) bool {
	quality := map[string]float64{}
	for part := range strings.SplitSeq(accept, ",") {
		media, params, _ := strings.Cut(part, ";")
		q := 1.0
		for param := range strings.SplitSeq(params, ";") {
			if value, ok := strings.CutPrefix(strings.TrimSpace(param), "q="); ok {
				q, _ = strconv.ParseFloat(value, 64)
			}
		}
		quality[strings.ToLower(strings.TrimSpace(media))] = q
	}
	best := 0.0
	for _, name := range yamlTypes() {
		best = max(best, quality[name])
	}
	return quality[mediaJSON] > 0 && quality[mediaJSON] >= best
}
