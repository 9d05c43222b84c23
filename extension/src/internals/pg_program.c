/*-------------------------------------------------------------------------
 *
 * pg_program.c
 *		What the server's program contains and does not export: its variables,
 *		hash tables, built-in functions and libraries.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fmgr.h"
#include "nodes/memnodes.h"
#include "utils/fmgrtab.h"
#include "utils/memutils.h"

#include "pg_program.h"
#include "self_check.h"

/* ----------------------------------------------------------------
 *		The memory of the server program's variables: the writable data,
 *		zeroed or not, without what is read-only once the program is loaded.
 *
 * Static variables of other files are searched for there.
 */

/*
 * dl_iterate_phdr() callback.  The first object is the program itself; the
 * callback ends the iteration there.
 */
static int
find_data(struct dl_phdr_info *info, size_t size, void *argument)
{
	BatonProgramData *range = argument;
	uintptr_t	read_only_end = 0;

	for (int i = 0; i < info->dlpi_phnum; i++)
	{
		uint32		type = info->dlpi_phdr[i].p_type;
		uintptr_t	start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
		uintptr_t	end = start + info->dlpi_phdr[i].p_memsz;

		if (type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_W) != 0 &&
			range->start == 0)
		{
			range->start = start;
			range->end = end;
		}
		else if (type == PT_GNU_RELRO)
			read_only_end = end;
	}

	if (read_only_end > range->start && read_only_end <= range->end)
		range->start = read_only_end;
	range->start = TYPEALIGN(sizeof(void *), range->start);
	range->end = TYPEALIGN_DOWN(sizeof(void *), range->end);
	return 1;
}

bool
baton_program_data(BatonProgramData *data)
{
	data->start = data->end = 0;
	dl_iterate_phdr(find_data, data);
	return data->start != 0 && data->start < data->end;
}

static int
find_code(struct dl_phdr_info *info, size_t size, void *argument)
{
	BatonProgramData *range = argument;

	for (int i = 0; i < info->dlpi_phnum; i++)
	{
		uintptr_t	start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;

		if (info->dlpi_phdr[i].p_type == PT_LOAD &&
			(info->dlpi_phdr[i].p_flags & PF_X) != 0 && range->start == 0)
		{
			range->start = start;
			range->end = start + info->dlpi_phdr[i].p_memsz;
		}
	}
	return 1;
}

bool
baton_is_program_code(const void *address)
{
	static BatonProgramData code = {0, 0};

	if (code.end == 0)
		dl_iterate_phdr(find_code, &code);
	return (uintptr_t) address >= code.start && (uintptr_t) address < code.end;
}

/* ----------------------------------------------------------------
 *		Finding hash tables that are private to other files of the server.
 *
 * hash_create() (dynahash.c) makes a memory context named "dynahash" for a
 * table.  The identifier of the context is the table's name, and this name
 * lies directly behind the HTAB.  Hence identifier minus sizeof(HTAB) is the
 * table; the size is the same distance in a table made here.
 *
 * A struct HTAB contains only values and pointers (dynahash.c, 15 to 18):
 * everything else lies in the memory context that its hcxt names, and nothing
 * there points back to it.  So an HTAB may be copied over another, which is
 * that table from then on.
 */

/*
 * The only context of a table of that name below parent; NULL if there is
 * none, or several.
 */
static MemoryContext
find_context(MemoryContext parent, const char *name)
{
	MemoryContext found = NULL;

	for (MemoryContext child = parent->firstchild; child != NULL;
		 child = child->nextchild)
	{
		if (child->ident == NULL || strcmp(child->name, "dynahash") != 0 ||
			strcmp(child->ident, name) != 0)
			continue;
		if (found != NULL)
			return NULL;
		found = child;
	}
	return found;
}

Size
baton_hash_header_size(void)
{
	static Size size = 0;
	MemoryContext parent;
	MemoryContext context;
	HASHCTL		control;
	HTAB	   *table;

	if (size != 0)
		return size;
	parent = AllocSetContextCreate(CurrentMemoryContext, "pg_baton probe",
								   ALLOCSET_SMALL_SIZES);
	control.keysize = sizeof(Oid);
	control.entrysize = sizeof(Oid);
	control.hcxt = parent;
	table = hash_create("pg_baton probe", 16, &control,
						HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	context = find_context(parent, "pg_baton probe");
	if (context != NULL && context->ident > (const char *) table &&
		context->ident - (const char *) table <= 1024 &&
		(context->ident - (const char *) table) % sizeof(void *) == 0)
		size = context->ident - (const char *) table;
	MemoryContextDelete(parent);
	return size;
}

HTAB *
baton_hash_find(const char *name)
{
	return baton_hash_find_below(TopMemoryContext, name);
}

HTAB *
baton_hash_find_below(MemoryContext parent, const char *name)
{
	MemoryContext context = find_context(parent, name);
	Size		size = baton_hash_header_size();
	HTAB	   *table;

	if (context == NULL || size == 0)
		return NULL;
	table = (HTAB *) (context->ident - size);
	return GetMemoryChunkContext(table) == context ? table : NULL;
}

bool
baton_hash_same_form(const HTAB *one, const HTAB *other, int own_words)
{
	const uintptr_t *a = (const uintptr_t *) one;
	const uintptr_t *b = (const uintptr_t *) other;
	int			different = 0;

	for (Size i = 0; i < baton_hash_header_size() / sizeof(uintptr_t); i++)
		if (a[i] != b[i])
			different++;
	return different <= own_words;
}

HTAB *
baton_hash_make_room(MemoryContext context)
{
	return MemoryContextAllocZero(context, baton_hash_header_size());
}

void
baton_hash_exchange(HTAB *place, HTAB *room, const HTAB *other)
{
	memcpy(room, place, baton_hash_header_size());
	memcpy(place, other, baton_hash_header_size());
}

/* ----------------------------------------------------------------
 *		Replacing built-in functions of SQL.
 *
 * fmgr_builtins (fmgrtab.c, generated; declared in fmgrtab.h) is the table
 * through which fmgr.c calls built-in functions by OID (fmgr_isbuiltin, which
 * fmgr_info asks first) and LANGUAGE internal functions by name
 * (fmgr_lookupByName): by an entry's `func`.  Children of the postmaster
 * inherit an entry that was changed in it.  C code that calls such a function
 * directly still gets the original, as pg_baton does.
 *
 * The table is constant: it lies in memory that was made read-only after
 * relocation (RELRO), or in constant data.  The pages are made writable for
 * the change; never pages that contain code.
 *
 * Compiled expressions do not use the table: llvm_function_reference
 * (llvmjit.c) has a function of LANGUAGE internal called by its symbol,
 * unless fmgr_symbol (fmgr.c) says that it needs a hook (needs_fmgr_hook).
 * Then fmgr_security_definer is called, which looks the function up as
 * fmgr_info does. fmgr_info itself does not ask that hook for built-in
 * functions.
 *
 * Checked in 15 to 18.
 */

/*
 * The callers that replace functions: process IDs, SYSTEM_USER, statistics.
 */
#define MOST_LISTS 3

static struct
{
	const BatonBuiltin *builtins;
	int			count;
}			replaced[MOST_LISTS];
static int	replaced_lists = 0;

/*
 * The segment of the program that contains an address, and whether it is
 * writable.
 */
typedef struct Place
{
	uintptr_t	start;
	uintptr_t	end;
	bool		found;			/* in data, or constant data */
	bool		writable;		/* at present */
} Place;

/* dl_iterate_phdr() callback; the first object is the program itself. */
static int
find_place(struct dl_phdr_info *info, size_t size, void *argument)
{
	Place	   *place = argument;

	for (int i = 0; i < info->dlpi_phnum; i++)
	{
		const		ElfW(Phdr) * part = &info->dlpi_phdr[i];
		uintptr_t	start = info->dlpi_addr + part->p_vaddr;
		uintptr_t	end = start + part->p_memsz;

		if (part->p_type == PT_LOAD && place->start >= start && place->end <= end)
		{
			place->found = (part->p_flags & PF_X) == 0;
			place->writable = (part->p_flags & PF_W) != 0;
		}
	}
	for (int i = 0; i < info->dlpi_phnum; i++)
	{
		const		ElfW(Phdr) * part = &info->dlpi_phdr[i];
		uintptr_t	start = info->dlpi_addr + part->p_vaddr;

		if (part->p_type == PT_GNU_RELRO && place->start >= start &&
			place->end <= start + part->p_memsz)
			place->writable = false;
	}
	return 1;
}

static FmgrBuiltin *
find_builtin(const BatonBuiltin *builtin)
{
	uint16		index;

	if (builtin->oid > fmgr_last_builtin_oid)
		return NULL;
	index = fmgr_builtin_oid_index[builtin->oid];
	if (index == InvalidOidBuiltinMapping || index >= fmgr_nbuiltins ||
		fmgr_builtins[index].foid != builtin->oid ||
		strcmp(fmgr_builtins[index].funcName, builtin->name) != 0 ||
		fmgr_builtins[index].func != builtin->original)
		return NULL;
	return unconstify(FmgrBuiltin *, &fmgr_builtins[index]);
}

bool
baton_builtin_is_replaced(Oid function)
{
	if (function > fmgr_last_builtin_oid)
		return false;
	for (int list = 0; list < replaced_lists; list++)
		for (int i = 0; i < replaced[list].count; i++)
			if (replaced[list].builtins[i].oid == function)
				return true;
	return false;
}

const char *
baton_builtins_replace(const BatonBuiltin *builtins, int count)
{
	Size		page = sysconf(_SC_PAGESIZE);
	Place		place = {
		.start = (uintptr_t) &fmgr_builtins[0],
		.end = (uintptr_t) &fmgr_builtins[fmgr_nbuiltins]
	};
	uintptr_t	start;
	Size		length;

	for (int i = 0; i < count; i++)
		if (OidIsValid(builtins[i].oid) && find_builtin(&builtins[i]) == NULL)
			return psprintf("function \"%s\" is not as expected", builtins[i].name);

	dl_iterate_phdr(find_place, &place);
	if (!place.found)
		return "the table of built-in functions is not in the program's data";

	start = TYPEALIGN_DOWN(page, place.start);
	length = TYPEALIGN(page, place.end) - start;
	if (!place.writable &&
		mprotect((void *) start, length, PROT_READ | PROT_WRITE) != 0)
		return psprintf("the table of built-in functions cannot be written: %m");
	for (int i = 0; i < count; i++)
		if (OidIsValid(builtins[i].oid))
			find_builtin(&builtins[i])->func = builtins[i].ours;
	if (!place.writable && mprotect((void *) start, length, PROT_READ) != 0)
		ereport(LOG,
				(errcode(ERRCODE_SYSTEM_ERROR),
				 errmsg("the table of built-in functions cannot be made read-only again: %m")));

	Assert(replaced_lists < MOST_LISTS);
	replaced[replaced_lists].builtins = builtins;
	replaced[replaced_lists++].count = count;
	return NULL;
}

/* ----------------------------------------------------------------
 *		The modules of the server that this process loads.
 *
 * A library gets into a process in many ways: a C function's first call or
 * its CREATE FUNCTION (fmgr_c_validator in pg_proc.c), an output plugin,
 * another library's load_external_function().  All end in
 * internal_load_library() (dfmgr.c, 15 to 18), which calls dlopen(), then
 * _PG_init(), and only then enters the file into its own list; if _PG_init()
 * fails the library stays in the process and is not in that list.  So the C
 * library's list is used: it grows at its end (_dl_add_to_namespace_list in
 * glibc's elf/dl-object.c), and reading one word tells whether it has grown.
 *
 * A record lives as long as its library is held open. dfmgr.c immediately
 * closes those that are no modules; this code holds the last known one
 * itself.
 */

struct link_map *baton_last_library = NULL;

/* dlopen()'s handle of baton_last_library, which keeps its record */
static void *held = NULL;

/* A handle of a library that is loaded, or NULL if none has that name. */
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

		/* it has no name to hold it by: assume that it is a module */
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
