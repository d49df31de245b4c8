package config

import (
	"encoding"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Prefix begins the name of every variable that is meant for Annona.
const Prefix = "ANNONA_"

// adminToken is read by `annona demo` and `annona admin` themselves and is no role's setting. It is a credential.
const adminToken = Prefix + "ADMIN_TOKEN"

// readEnviron sets what the variables name. An empty variable counts as not set, as in most programs' environments.
func readEnviron(environ []string, into reflect.Value) []error {
	given := map[string]string{}
	for _, variable := range environ {
		name, text, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, Prefix) && name != adminToken {
			given[name] = text
		}
	}
	if len(given) == 0 {
		return nil
	}
	settings := settingsOf(into.Type())
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(given)) {
		s, known := settings[name]
		if !known {
			problems = append(problems, fmt.Errorf("%s is unknown; unset it, or use one of: %s", name, nearest(name, settings)))
			continue
		}
		if given[name] == "" {
			continue
		}
		for _, err := range s.set(given[name], into) {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
		}
	}
	return problems
}

// set reads text into the setting's value. Text and lists of text are taken as they are, the rest is YAML.
func (s setting) set(text string, root reflect.Value) []error {
	v := s.in(root)
	switch own, reads := reflect.TypeAssert[encoding.TextUnmarshaler](v.Addr()); {
	case reads:
		if err := own.UnmarshalText([]byte(text)); err != nil {
			return []error{err}
		}
		return nil
	case readsItself(v.Type()):
		return new(decoder).decode([]byte(text), v)
	case v.Kind() == reflect.String:
		v.SetString(text)
		return nil
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.String && !strings.HasPrefix(text, "["):
		text = "[" + strings.Join(quoted(strings.Split(text, ",")), ",") + "]"
	}
	return new(decoder).decode([]byte(text), v)
}

// quoted returns parts as YAML texts, without the space around them.
func quoted(parts []string) []string {
	for i, part := range parts {
		parts[i] = "'" + strings.ReplaceAll(strings.TrimSpace(part), "'", "''") + "'"
	}
	return parts
}

// nearest lists the known variables that begin as name does, as far as any does: a typing mistake stands near its cure.
func nearest(name string, settings map[string]setting) string {
	for end := len(name); ; end-- {
		var like []string
		for known := range settings {
			if strings.HasPrefix(known, name[:end]) {
				like = append(like, known)
			}
		}
		if len(like) > 0 || end == 0 {
			slices.Sort(like)
			return strings.Join(like, ", ")
		}
	}
}
