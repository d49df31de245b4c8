package identity

import (
	"encoding/json"
	"slices"
	"strconv"
)

// scalars renders the claims that are one text, number or truth value, as policies match them, and names the others, sorted.
func scalars(claims map[string]any) (rendered map[string]string, dropped []string) {
	for name, value := range claims {
		text, ok := scalar(value)
		if !ok {
			dropped = append(dropped, name)
			continue
		}
		if rendered == nil {
			rendered = make(map[string]string, len(claims))
		}
		rendered[name] = text
	}
	slices.Sort(dropped)
	return rendered, dropped
}

// scalar renders what YAML and JSON read a value as. Numbers of JSON stay as they were written.
func scalar(value any) (string, bool) {
	switch v := value.(type) {
	case string:
		return v, true
	case bool:
		return strconv.FormatBool(v), true
	case json.Number:
		return v.String(), true
	case int:
		return strconv.Itoa(v), true
	case int64:
		return strconv.FormatInt(v, 10), true
	case uint64:
		return strconv.FormatUint(v, 10), true
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), true
	default:
		return "", false
	}
}
