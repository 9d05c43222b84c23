"""Random scripts of SET, RESET, set_config, DO, savepoints and reloads, run by
psql with and without context_roundtrip: every difference is a bug.

usage: context_fuzz.py FIRST_SEED LAST_SEED ROUNDTRIP_LIBRARY

The server is found by PGHOST, PGPORT and PGUSER (a superuser); database
postgres with roles ra and rb (grant ra to rb) and schema a.  Uses ALTER SYSTEM.
"""
import os
import random
import subprocess
import sys
import tempfile
import time

env = dict(os.environ)
work = tempfile.mkdtemp()
def script(seed):
    r=random.Random(seed); out=[]
    vals={'work_mem':["'1MB'","'77kB'","default"],'search_path':['a,b','public','"$user"',"''",'default'],
     'timezone':["'UTC'","'Asia/Tokyo'","-3.5","default","'PST8PDT'"],'datestyle':['german','iso,ymd','sql','default'],
     'intervalstyle':['postgres_verbose','iso_8601','default'],'client_encoding':['latin1','utf8','sql_ascii','win1252','default'],
     'seq_page_cost':['0.1','1.0000000000000002','1e-300','default'],'enable_seqscan':['on','off','default'],
     'role':['ra','rb','none','default'],'session_authorization':['ra','rb','default'],
     'my.a':["'1'","''","'x y'","default"],'my.b':["'1'","default"],'new.c':["'q'"],
     'extra_float_digits':['0','2','default'],'statement_timeout':["'10min'",'0','default'],
     'default_transaction_isolation':['serializable',"'read committed'",'default'],
     'transaction_isolation':['serializable'],'default_tablespace':["pg_default","''",'default'],
     'log_min_duration_statement':['100000','-1','default'],'application_name':["'app one'","''",'default'],
     'bytea_output':['escape','hex'],'session_replication_role':['replica','default'],'default_text_search_config':["simple","'pg_catalog.english'"],
     'standard_conforming_strings':['on'],'temp_tablespaces':["''",'pg_default'],'lc_messages':["'C'","'POSIX'"],'xmloption':['document','content'],'backslash_quote':['on','safe_encoding'],'plpgsql.variable_conflict':["use_column","error"]}
    def one():
        n=r.choice(list(vals)); v=r.choice(vals[n])
        loc='local ' if r.random()<.25 else ''
        k=r.random()
        if k<.6: return f"set {loc}{n} = {v};" if n!='session_authorization' else f"set {loc}session authorization {v};"
        if k<.75: return f"reset {n};" 
        if k<.8: return r.choice(["reset all;","discard all;"])
        vv=v.strip("'") if v!='default' else ''
        if n in('search_path',): vv='q'
        if k<.9: return f"select set_config('{n}', '{vv}', {r.choice(['true','false'])});"
        return f"do $$ begin perform set_config('{n}','{vv}',false); {r.choice(['','raise exception $x$oops$x$;'])} end $$;"
    def look():
        k=r.random()
        if k<.4: return "select name,setting,source,reset_val,boot_val from pg_settings where source not in ('default','configuration file','override','client','environment variable') or name in ('transaction_isolation') order by 1;"
        if k<.6: return "select current_setting('my.a',true), current_setting('my.b',true), current_setting('new.c',true), current_setting('my.a',true) is null a, current_setting('my.b',true) is null b, current_setting('new.c',true) is null c;"
        if k<.8: return "select session_user,current_user; show is_superuser; show role;"
        return "select now()='2020-01-01 00:00+0' x, timestamptz '2020-01-01 00:00+00', interval '1 day 2 hours', 0.1::float8+0.2, current_schemas(true);"
    for i in range(60):
        k=r.random()
        if k<.2:
            out.append('begin;')
            for j in range(r.randint(1,8)):
                out.append(r.choice([one,one,one,look,lambda:"savepoint s;",lambda:"rollback to s;",lambda:"release s;",lambda:"select 1/0;"])())
            out.append(r.choice(['commit;','rollback;','commit and chain; commit;']))
        elif k<.7: out.append(one())
        else: out.append(look())
        if r.random()<.03: out.append(r.choice(["alter system set work_mem='13MB';","alter system reset all;","alter system set my.a='fromfile';","alter system set extra_float_digits=-2;"])+" select pg_reload_conf(); select pg_sleep(0.1);")
        if r.random()<.03: out.append("do $$begin null; end$$;")
    out.append("discard all; reset session authorization; alter system reset all; select pg_reload_conf(); select pg_sleep(0.1);")
    return '\n'.join(out)
# The postmaster keeps a placeholder once the files have named it, and hands it
# to every later session: let it have it before the first run.
for sql in (["set my.a=''", "alter system set my.a='x'", "select pg_reload_conf()"],
            ["alter system reset all", "select pg_reload_conf()"]):
    subprocess.run(['psql','-Xq','dbname=postgres']+[a for q in sql for a in ('-c',q)],env=env,stdout=subprocess.DEVNULL,check=True)
    time.sleep(0.3)
bad=0
for seed in range(int(sys.argv[1]),int(sys.argv[2])):
    open(work+'/script.sql','w').write(script(seed))
    res=[]
    for o in ['',f'-c session_preload_libraries={sys.argv[3]}']:
        p=subprocess.run(['psql','-X','-f',work+'/script.sql','dbname=postgres'],env=dict(env,PGOPTIONS=o),stdout=subprocess.PIPE,stderr=subprocess.STDOUT)
        res.append(p.stdout)
        subprocess.run(['psql','-Xqc','alter system reset all','-c','select pg_reload_conf()','dbname=postgres'],env=env,stdout=subprocess.DEVNULL)
    if res[0]!=res[1]:
        bad+=1
        open(work+f'/seed{seed}.sql','w').write(script(seed))
        open(work+'/direct.out','wb').write(res[0]);open(work+'/roundtrip.out','wb').write(res[1])
        print('seed',seed); print(subprocess.run(['diff',work+'/direct.out',work+'/roundtrip.out'],stdout=subprocess.PIPE).stdout.decode('latin1')[:1500])
        if bad>3: break
print('bad',bad)
sys.exit(bad != 0)
