// Package config reads a role's configuration: a strict YAML file, then the environment, into a struct that holds the defaults.
// A name that the struct does not have is an error with its place, for a setting that nobody reads is worse than none.
//
// The struct's yaml tags are the only list of names: a field `timeout` in a section `redis` is `redis: {timeout: 50ms}` in the
// file and ANNONA_REDIS_TIMEOUT=50ms in the environment. Lists of text may be given there as a,b; everything else that is not
// text is read as YAML, so ANNONA_REGIONS='[{name: eu, weight: 1}]' works too. Anchors, aliases, merge keys and tags are
// refused: such a file has one way to say a thing, and none to say it a million times.
package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
)

// ErrUsage is wrapped by every error of a configuration or a command line: what the reader wrote must change. Exit status 2.
var ErrUsage = errors.New("bad usage or configuration")

// maxFile bounds a configuration file, which has no reason to be longer than a book's chapter.
const maxFile = 1 << 20

// Load reads the file at path (none if it is "") and then environ (as os.Environ returns it) into the struct that into points
// to, which holds the defaults. It returns every problem at once, and changes nothing if there is one.
// File names inside a configuration are taken as they are, that is, from the working directory.
func Load(path string, environ []string, into any) error {
	target := reflect.ValueOf(into)
	if target.Kind() != reflect.Pointer || target.Elem().Kind() != reflect.Struct {
		panic(fmt.Sprintf("config.Load into %T: want a pointer to a struct", into))
	}
	loaded := reflect.New(target.Type().Elem()).Elem()
	loaded.Set(target.Elem())
	var problems []error
	if path != "" {
		problems = readFile(path, loaded)
	}
	problems = append(problems, readEnviron(environ, loaded)...)
	if len(problems) > 0 {
		return fmt.Errorf("%w:\n%w", ErrUsage, errors.Join(problems...))
	}
	target.Elem().Set(loaded)
	return nil
}

func readFile(path string, into reflect.Value) []error {
	info, err := os.Stat(path)
	if err == nil && info.Size() > maxFile {
		err = fmt.Errorf("%s: %d bytes; a configuration has at most %d", path, info.Size(), maxFile)
	}
	if err != nil {
		return []error{err} // names the path
	}
	source, err := os.ReadFile(path)
	if err != nil {
		return []error{err}
	}
	return (&decoder{origin: path + ":"}).decode(source, into)
}
