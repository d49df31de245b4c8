package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/annona-gateway/annona/shared/limit"
)

const (
	mediaJSON = "application/json"
	mediaYAML = "application/yaml"
)

// yamlTypes returns the names under which YAML is sent; application/yaml is the registered one.
func yamlTypes() []string {
	return []string{mediaYAML, "application/x-yaml", "text/yaml", "text/x-yaml"}
}

// mediaType returns the request's content type without its parameters.
func mediaType(r *http.Request) string {
	media, _, err := mime.ParseMediaType(r.Header.Get(echo.HeaderContentType))
	if err != nil {
		return ""
	}
	return media
}

func unsupported(want ...string) error {
	return &refusal{kind: errMediaType, detail: "send the header Content-Type: " + strings.Join(want, " or ")}
}

// readAll reads a body of up to limit bytes.
func readAll(c echo.Context, limit int64) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(c.Response(), c.Request().Body, limit))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, errTooLarge
	case err != nil:
		return nil, &refusal{kind: errBadRequest, detail: "the body ended early", cause: err}
	}
	return body, nil
}

// readJSON reads a body of exactly one JSON value without unknown fields. Its errors do not quote the body, which may name a
// client.
func readJSON(c echo.Context, into any) error {
	if mediaType(c.Request()) != mediaJSON {
		return unsupported(mediaJSON)
	}
	body, err := readAll(c, maxBodyBytes)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return badRequest("the body is not the JSON that this path reads: %s", jsonFault(err))
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return badRequest("the body has more than one JSON value")
	}
	return nil
}

// jsonFault says what is wrong without the values: the library's own texts quote some of them.
func jsonFault(err error) string {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.Is(err, io.EOF):
		return "it is empty"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "it ends early"
	case errors.As(err, &syntax):
		return "syntax error"
	case errors.As(err, &kind):
		return "field " + kind.Field + " must be " + article(kind.Type.Kind().String())
	case isUnknownField(err):
		return err.Error()[len("json: "):]
	}
	return "a field has a value that does not fit"
}

func article(kind string) string {
	if kind == "struct" || kind == "map" {
		return "an object"
	}
	return "a " + kind
}

func isUnknownField(err error) bool {
	return len(err.Error()) < 200 && strings.HasPrefix(err.Error(), "json: unknown field")
}

// reply answers 200 with v. A client that went away is echo's to notice; nobody reads the error.
func reply(c echo.Context, v any) error {
	return c.JSON(http.StatusOK, v) //nolint:wrapcheck // it goes to writeProblem as it is
}

// replyBlob answers 200 with bytes of a type.
func replyBlob(c echo.Context, media string, body []byte) error {
	return c.Blob(http.StatusOK, media, body) //nolint:wrapcheck // it goes to writeProblem as it is
}

// onlyQuery refuses a query parameter that the path does not know, or that stands twice: it may be a misspelt filter.
func onlyQuery(c echo.Context, known ...string) error {
	values, err := queryOf(c.Request())
	if err != nil {
		return err
	}
	for name, given := range values {
		if !slices.Contains(known, name) {
			return badRequest("there is no such query parameter here; known are: %v", known)
		}
		if len(given) > 1 {
			return badRequest("the query parameter %s stands twice", name)
		}
	}
	return nil
}

// wholeSeconds rounds up, for whoever waits that long must not come too early.
func wholeSeconds(d time.Duration) int64 {
	return int64((max(d, 0) + time.Second - 1) / time.Second)
}

func secondsOf(d limit.Micros) int64 {
	return int64((max(d, 0) + limit.MicrosPerSecond - 1) / limit.MicrosPerSecond)
}

// instant is t as the API writes it.
func instant(t time.Time) *time.Time {
	utc := t.UTC().Truncate(time.Millisecond)
	return &utc
}
