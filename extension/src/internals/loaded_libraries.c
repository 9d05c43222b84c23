/*-------------------------------------------------------------------------
 *
 * loaded_libraries.c
 *		The server's modules that this process loads, as it loads them.
 *
 * A library comes into a process in many ways: a C function's first call or its
 * CREATE FUNCTION (fmgr_c_validator in pg_proc.c), an output plugin, another
 * library's load_external_function().  All end in internal_load_library()
 * (dfmgr.c, 15 to 18), which calls dlopen(), then _PG_init(), and only then
 * enters the file into its own list; if _PG_init() fails the library stays in
 * the process and is not in that list.  So the C library's list is looked at: it
 * grows at its end (_dl_add_to_namespace_list in glibc's elf/dl-object.c), and
 * whether it has is one word to read.
 *
 * A record lives as long as somebody holds its library open.  dfmgr.c closes
 * those that are no modules at once; the last one we know we hold ourselves.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dlfcn.h>

#include "fmgr.h"

#include "loaded_libraries.h"
#include "self_check.h"

struct link_map *baton_last_library = NULL;

/* dlopen()'s handle of the last one, which keeps its record */
static void *held = NULL;

/* A handle of a library that is there; NULL if there is none of that name. */
static void *
hold(const struct link_map *library)
{
	return dlopen(library->l_name, RTLD_LAZY | RTLD_NOLOAD);
}

static bool
move_to(struct link_map *library)
{
	void	   *handle = hold(library);

	if (handle == NULL)
		return false;
	if (held != NULL)
		dlclose(held);
	held = handle;
	baton_last_library = library;
	return true;
}

const char *
baton_libraries_attach(void)
{
	Dl_info		info;
	struct link_map *first;
	struct link_map *last;
	struct link_map *own;
	void	   *program = dlopen(NULL, RTLD_LAZY);
	bool		found = false;

	if (program == NULL || dlinfo(program, RTLD_DI_LINKMAP, &first) != 0 ||
		dladdr1(&baton_last_library, &info, (void **) &own, RTLD_DL_LINKMAP) == 0)
		return "the list of loaded libraries was not found";
	for (last = first;; last = last->l_next)
	{
		found |= last == own;
		if (last->l_next == NULL)
			break;
	}
	dlclose(program);
	if (!found || !move_to(own) || dlsym(held, PG_MAGIC_FUNCTION_NAME_STRING) == NULL ||
		!move_to(last))
		return "the list of loaded libraries is not as expected";
	if (baton_self_check_is_broken("libraries"))
		return "broken on purpose";
	return NULL;
}

const char *
baton_libraries_next(void)
{
	while (baton_libraries_more())
	{
		struct link_map *library = baton_last_library->l_next;

		/* no name to hold it by: a module, for all that is known */
		if (!move_to(library))
		{
			baton_last_library = NULL;
			return library->l_name;
		}
		if (dlsym(held, PG_MAGIC_FUNCTION_NAME_STRING) != NULL)
			return library->l_name;
	}
	return NULL;
}
