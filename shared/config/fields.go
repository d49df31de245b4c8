package config

import (
	"fmt"
	"reflect"
	"strings"
)

// field is one named field of a struct, those of inlined structs included.
type field struct {
	name  string
	index []int
	typ   reflect.Type
}

// fieldsOf lists the fields of struct type t in their order. The tags are read as the YAML library reads them.
func fieldsOf(t reflect.Type) []field {
	var fields []field
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if !f.IsExported() || name == "-" {
			continue
		}
		if options == "inline" {
			for _, inner := range fieldsOf(f.Type) {
				inner.index = append([]int{f.Index[0]}, inner.index...)
				fields = append(fields, inner)
			}
			continue
		}
		if name == "" {
			name = strings.ToLower(f.Name)
		}
		fields = append(fields, field{name: name, index: f.Index, typ: f.Type})
	}
	return fields
}

// isLeaf reports whether a value of type t is left to the YAML library as a whole: anything but sections (structs),
// lists and pointers to something optional.
func isLeaf(t reflect.Type) bool {
	if readsItself(t) {
		return true
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Slice, reflect.Pointer:
		return false
	default:
		return true
	}
}

// setting is one value that the environment can give.
type setting struct {
	path  string // redis.pool_size
	steps [][]int
	typ   reflect.Type
}

// settingsOf lists the settings below struct type t by the name of their variable. Two paths with one name would be a trap for
// operators, and are a mistake in the struct.
func settingsOf(t reflect.Type) map[string]setting {
	settings := map[string]setting{}
	collect(t, setting{}, settings)
	return settings
}

func collect(t reflect.Type, above setting, settings map[string]setting) {
	for _, f := range fieldsOf(t) {
		here := setting{path: join(above.path, f.name), typ: f.typ}
		here.steps = append(append(here.steps, above.steps...), f.index)
		section := f.typ
		if section.Kind() == reflect.Pointer {
			section = section.Elem()
		}
		if section.Kind() == reflect.Struct && !readsItself(section) {
			collect(section, here, settings)
			continue
		}
		variable := Prefix + strings.ToUpper(strings.ReplaceAll(here.path, ".", "_"))
		if other, taken := settings[variable]; taken {
			panic(fmt.Sprintf("%s would be both %s and %s", variable, other.path, here.path))
		}
		settings[variable] = here
	}
}

// in returns the setting's value inside root, making the sections on the way that are not there yet. A section that is there
// is copied first, for the defaults that it belongs to are the caller's until all is well.
func (s setting) in(root reflect.Value) reflect.Value {
	v := root
	for _, step := range s.steps {
		if v.Kind() == reflect.Pointer {
			section := reflect.New(v.Type().Elem())
			if !v.IsNil() {
				section.Elem().Set(v.Elem())
			}
			v.Set(section)
			v = section.Elem()
		}
		v = v.FieldByIndex(step)
	}
	return v
}
